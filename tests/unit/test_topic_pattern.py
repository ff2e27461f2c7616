"""Topics by pattern: what matches, and which topics two pipelines share."""

import pickle
from dataclasses import replace

import pytest

from exactbatch import Append, Json, Pipeline, TopicPattern
from exactbatch.errors import ConfigurationError
from exactbatch.ledger.definition import adds_topics, build_definition, check_topics
from support.pipelines import flights_pipeline


def test_a_pattern_matches_whole_names_and_no_internal_topic():
    pattern = TopicPattern(r"shop\.public\..*")
    assert pattern.matches("shop.public.orders")
    assert not pattern.matches("shop_public.orders")
    assert not pattern.matches("a.shop.public.orders")
    assert not pattern.matches("shop.public.a\n")  # `.` and fullmatch: no name with a line break
    for internal in ("__consumer_offsets", "__debezium-heartbeat.shop", "__transaction_state"):
        assert not TopicPattern(".*").matches(internal)
    assert pickle.loads(pickle.dumps(pattern)) == pattern


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"start": {"other": {0: 5}}},
            "to name topics of the pipeline, topics that match 'shop.*', found 'other'",
        ),
    ],
)
def test_a_pipeline_with_a_pattern_refuses_what_cannot_work(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        flights_pipeline(**{"topics": TopicPattern("shop.*"), **changes})


def test_an_invalid_expression_is_refused():
    with pytest.raises(ConfigurationError, match=r"found 'shop\(': missing \)"):
        TopicPattern("shop(")
    with pytest.raises(ConfigurationError, match="expected regex to be str, found 1"):
        TopicPattern(1)  # type: ignore[arg-type]


def pipeline(name: str, topics: tuple[str, ...] | TopicPattern) -> Pipeline:
    return Pipeline(name=name, topics=topics, value=Json("id int"), sink=Append("public.t"))


@pytest.mark.parametrize(
    ("one", "loaded", "other", "other_loaded", "shared"),
    [
        (TopicPattern("a.*"), [], ("ab",), [], "'ab'"),
        (TopicPattern("a.*"), [], ("b",), ["ac"], "'ac'"),
        (("ab",), [], TopicPattern("a.*"), [], "'ab'"),
        (TopicPattern(".*b"), ["ab"], TopicPattern("a.*"), [], "'ab'"),
        (TopicPattern(".*b"), [], TopicPattern("a.*"), ["ab"], "'ab'"),
        (TopicPattern("a.*"), [], TopicPattern("a.*"), [], "topics that match 'a.*'"),
        (TopicPattern(".*b"), [], TopicPattern("a.*"), ["ac"], None),
        (TopicPattern("a.*"), [], ("b",), [], None),
    ],
)
def test_pipelines_with_one_target_share_what_a_pattern_matches(one, loaded, other, other_loaded, shared):
    definitions = [
        replace(each, topics=sorted({*each.topics, *topics}))
        for each, topics in (
            (build_definition(pipeline("one", one)), loaded),
            (build_definition(pipeline("other", other)), other_loaded),
        )
    ]
    for own, companion in (definitions, definitions[::-1]):
        if shared is None:
            check_topics(own, companion, adds=True)
            continue
        with pytest.raises(ConfigurationError, match=f"both load {shared} into the table public.t"):
            check_topics(own, companion, adds=True)


def test_another_pattern_adds_topics():
    before, now = (build_definition(pipeline("p", topics)) for topics in (("a",), TopicPattern("a|b")))
    assert adds_topics(now, before)
    assert adds_topics(before, now)
    assert not adds_topics(now, now)

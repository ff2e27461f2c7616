"""Tables: how a topic becomes a pipeline, and what is refused."""

from dataclasses import replace

import pytest

from exactbatch import Append, Json, Pipeline, Tables, TableTopic, TopicPattern, Upsert
from exactbatch.errors import (
    ConfigurationError,
    KafkaUnavailable,
    TablesFailed,
    TablesUnfinished,
    TargetMismatch,
)
from exactbatch.tables import build_failure


def of(topic: TableTopic) -> Pipeline:
    return Pipeline(
        name=topic.name, topics=(topic.topic,), value=Json("id int"), sink=Append(f"shop.{topic.table}")
    )


def test_each_topic_has_a_pipeline_of_its_own():
    tables = Tables(name="shop", topics=TopicPattern(r"shop\.public\..*"), pipeline=of)
    members = tables.members(["shop.public.orders", "shop.public.customers"])
    assert [(each.name, each.topics, each.traits.target) for each in members] == [
        ("shop.customers", ("shop.public.customers",), "shop.customers"),
        ("shop.orders", ("shop.public.orders",), "shop.orders"),
    ]


def test_a_group_of_the_pattern_names_the_table():
    tables = Tables(name="shop", topics=TopicPattern(r"shop\.(?P<table>.+)"), pipeline=of)
    assert tables.find_table("shop.public.orders") == TableTopic(
        "shop.public.orders", "public.orders", "shop.public.orders"
    )


def test_a_topic_may_be_left_out():
    def without_logs(topic: TableTopic) -> Pipeline | None:
        return None if topic.table == "log" else of(topic)

    tables = Tables(name="shop", topics=("a.log", "a.orders"), pipeline=without_logs)
    assert [each.name for each in tables.members(tables.topic_names)] == ["shop.orders"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "expected a pipeline name"),
        ({"topics": ()}, "expected topics as names or a TopicPattern"),
        ({"at_a_time": 0}, "expected at_a_time to be 1 or more, found 0"),
        ({"pipeline": 5}, "expected pipeline to be a function, found 5"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        Tables(**{"name": "shop", "topics": ("a",), "pipeline": of, **changes})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda t: Pipeline(name=t.table, topics=(t.topic,), value=Json("id int"), sink=Append("s.t")),
            "name='shop.t'",
        ),
        (
            lambda t: Pipeline(name=t.name, topics=("b",), value=Json("id int"), sink=Append("s.t")),
            r"topics=\('b',\)",
        ),
        (
            lambda t: Pipeline(
                name=t.name, topics=TopicPattern("a.t"), value=Json("id int"), sink=Append("s.t")
            ),
            "found name='shop.t', topics=TopicPattern",
        ),
        (lambda _: 5, "expected its function to return a Pipeline or None"),
    ],
)
def test_a_member_has_the_name_and_the_topic_that_identify_it(made, message):
    tables = Tables(name="shop", topics=("a.t",), pipeline=made)
    with pytest.raises(ConfigurationError, match=message):
        tables.members(["a.t"])


def test_a_topic_whose_pipeline_cannot_be_made_does_not_concern_the_others():
    keys = {"orders": ("id",)}

    def keyed(topic):
        return replace(of(topic), sink=Upsert(f"public.{topic.table}", key=keys[topic.table]))

    tables = Tables(name="shop", topics=TopicPattern(".*"), pipeline=keyed)
    members, unmade = tables.possible_members(["s.orders", "s.customers"])
    assert [each.name for each in members] == ["shop.orders"]
    (error,) = unmade.values()
    assert list(unmade) == ["shop.customers"]
    assert str(error).startswith(
        "tables 'shop': its function raises KeyError for the topic 's.customers': 'customers'. Correct it, "
    )
    with pytest.raises(ConfigurationError, match="raises KeyError"):
        tables.members(["s.orders", "s.customers"])


def test_two_topics_with_one_name_are_refused():
    tables = Tables(name="shop", topics=TopicPattern(".*"), pipeline=of)
    with pytest.raises(ConfigurationError, match="'a.t' and 'b.t' would both be 'shop.t'"):
        tables.members(["a.t", "b.t"])


@pytest.mark.parametrize(
    ("registered", "made", "unmade"),
    [
        ((), ["shop.other"], {"shop.t"}),
        (("b.t",), ["shop.other", "shop.t"], {"a.t", "c.t"}),
        (("a.t", "b.t"), ["shop.other"], {"shop.t"}),  # which of them wrote the rows is not known
    ],
)
def test_topics_with_one_name_do_not_concern_the_others(registered, made, unmade):
    tables = Tables(name="shop", topics=TopicPattern(".*"), pipeline=of)
    members, errors = tables.possible_members(["c.t", "b.t", "a.t", "a.other"], registered)
    assert [each.name for each in members] == made
    assert errors.keys() == unmade
    for error in errors.values():
        assert "the topics 'a.t', 'b.t' and 'c.t' would all be 'shop.t'" in str(error)
    assert [each.known_topics(())[0] for each in members if each.name == "shop.t"] == list(registered)[:1] * (
        "shop.t" in made
    )


def test_a_topic_that_is_none_of_them_has_no_member():
    with pytest.raises(ConfigurationError, match="'b' is none of topics that match 'a'"):
        Tables(name="shop", topics=TopicPattern("a"), pipeline=of).member("b")


def test_a_failure_names_each_table_and_is_retryable_if_one_is():
    terminal, retryable = TargetMismatch("no column"), KafkaUnavailable("no answer")
    shop = Tables(name="shop", topics=("a", "b", "c"), pipeline=of)
    failed = build_failure(shop, {"shop.a": terminal}, others=2)
    assert isinstance(failed, TablesFailed)
    assert (
        str(failed)
        == "1 of 3 tables of 'shop' failed; the others are done: shop.a: TargetMismatch: no column"
    )
    both = build_failure(shop, {"shop.a": terminal, "shop.b": retryable}, others=0)
    assert isinstance(both, TablesUnfinished)
    assert both.retryable
    own = Pipeline(name="own", topics=("a",), value=Json("id int"), sink=Append("a"))
    assert build_failure(own, {"own": retryable}, others=0) is retryable

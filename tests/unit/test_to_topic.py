"""What a pipeline may forward: refused with the reason when it is defined."""

from typing import Any

import pytest

from exactbatch import Aggregate, Append, Count, Json, Pipeline, ToTopic, Upsert, Window
from exactbatch.errors import ConfigurationError

APPEND = Append("public.late")
UPSERT = Upsert("public.state", key=("id",))
HOURLY = Aggregate(
    "public.hourly",
    group_by=("name", Window("at", "1 hour", "hour")),
    aggregates={"n": Count()},
    allowed_lateness="1 hour",
)


def pipeline(sink: Any, forward: ToTopic, **changes: Any) -> Pipeline:
    value = Json("id int, name text, at timestamptz")
    return Pipeline(
        **{"name": "p", "topics": ("t",), "value": value, "sink": sink, "forward": forward, **changes}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "late flights"}, "expected the name of a topic"),
        ({"topic": ".."}, "expected the name of a topic"),
        ({"keyed_by": 1}, r"expected keyed_by to be str or a tuple of str, found 1 \(int\)"),
        ({"keyed_by": ("a", "a")}, "the key names a column twice"),
        ({"value": ()}, "the value has no columns"),
        ({"max_bytes": 0}, "max_bytes to be 1 or more"),
        ({"numbers": "float"}, "expected numbers to be 'number' or 'text'"),
    ],
)
def test_options_are_checked(options, said):
    with pytest.raises(ConfigurationError, match=said):
        ToTopic(**{"topic": "late", **options})


@pytest.mark.parametrize(
    ("sink", "options", "said"),
    [
        (APPEND, {"topic": "t"}, "it would process its own results"),
        (
            APPEND,
            {"keyed_by": ("flight",)},
            "expected the key among the columns of a result, id, name, at, kafka_topic, .*, found 'flight'",
        ),
        (APPEND, {"value": ("id", "tail")}, "expected the value among the columns .* found 'tail'"),
        (APPEND, {"key_format": "text"}, "needs exactly one key column"),
        (
            UPSERT,
            {"keyed_by": ("name",)},
            r"expected keyed_by to have the key columns of the sink, \(id\), found \(name\)",
        ),
        (UPSERT, {"value": ("kafka_offset",)}, "found 'kafka_offset'"),
        (HOURLY, {"keyed_by": ("hour",)}, r"key columns of the sink, \(name, hour\)"),
        (
            HOURLY,
            {"value": ("id",)},
            "expected the value among the columns of a result, name, hour, n, final, revisions, found 'id'",
        ),
        (HOURLY, {"key_format": "text"}, "needs exactly one key column"),
    ],
)
def test_key_and_value_must_fit_the_sink(sink, options, said):
    with pytest.raises(ConfigurationError, match=said):
        pipeline(sink, ToTopic(**{"topic": "late", **options}))


def test_ranges_that_commit_separately_have_no_order_to_forward():
    with pytest.raises(
        ConfigurationError, match="found forward, which sends the results of a batch in one order"
    ):
        pipeline(APPEND, ToTopic("late"), commit="partition")


def test_the_key_of_the_sink_is_the_key_of_messages():
    assert ToTopic("late").key_columns(("a", "b")) == ("a", "b")
    assert ToTopic("late", keyed_by=("b", "a")).key_columns(("a", "b")) == ("b", "a")
    assert ToTopic("late").key_columns(()) == ()
    pipeline(HOURLY, ToTopic("late", value=("n", "final")))
    pipeline(APPEND, ToTopic("late", keyed_by=("kafka_partition",), value=("id", "batch_id")))

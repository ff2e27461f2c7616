"""The requests to process offsets again, and the messages about requests that are written wrongly."""

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from exactbatch.airflow.parameters import find_replay, find_tables, parameters
from exactbatch.errors import ConfigurationError
from exactbatch.planning.request import ReplayRequest, RequestedRange, parse_range, parse_request
from support.airflow_versions import ParamValidationError

RANGE = {"topic": "t", "partition": 0, "from_offset": 5, "until_offset": 9}
START, END = "2026-01-05T08:00:00Z", "2026-01-05T09:00:00+02:00"


def test_the_defaults_of_the_form_ask_for_nothing():
    assert parse_request({name: param.value for name, param in parameters().items()}) is None
    assert parse_request({}) is None


def test_ranges_windows_and_batches():
    assert parse_request({"ranges": [RANGE], "available_only": True}) == ReplayRequest(
        ranges=(RequestedRange("t", 0, 5, 9),), available_only=True
    )
    assert parse_request({"batch_ids": [3, "4"]}) == ReplayRequest(batch_ids=(3, 4))
    window = parse_request({"start": "2026-01-05T08:00", "end": "2026-01-05T12:00+02:00"})
    assert window is not None
    assert window.window == (
        datetime(2026, 1, 5, 8, tzinfo=UTC),
        datetime(2026, 1, 5, 12, tzinfo=timezone(timedelta(hours=2))),
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"range": [RANGE]}, "found 'range': did you mean 'ranges'?"),
        (
            {"colour": 1},
            "expected the parameters ranges, start, end, batch_ids, available_only, found 'colour'",
        ),
        ({"ranges": [RANGE], "batch_ids": [1]}, "found ranges and batch_ids. Give exactly one"),
        ({"ranges": RANGE}, "expected ranges as a list"),
        ({"ranges": [{**RANGE, "offset": 1}]}, "expected each of ranges as {topic, partition,"),
        (
            {"ranges": [{**RANGE, "partition": "one"}]},
            "expected partition as a whole number from 0 to 9223372036854775807, found 'one'",
        ),
        ({"ranges": [{**RANGE, "from_offset": True}]}, "expected from_offset as a whole number"),
        (
            {"ranges": [{**RANGE, "topic": 3}]},
            "expected the topic of a range as the name of a topic, found 3",
        ),
        (
            {"batch_ids": ["-1"]},
            "expected a batch id as a whole number from 0 to 9223372036854775807, found '-1'",
        ),
        ({"end": END}, "found only end"),
        ({"start": "yesterday", "end": END}, "expected start as an ISO 8601 time such as"),
        ({"start": START, "end": "9999-12-31T23:59:59-05:00"}, "expected end as an ISO 8601 time"),
        ({"start": "0001-01-01T00:00:00+05:00", "end": END}, "expected start as an ISO 8601 time"),
        ({"start": START, "end": END}, "the time window 2026-01-05 08:00:00+00:00 to"),
        ({"available_only": True}, "available_only has no effect without ranges"),
        (
            {"available_only": "yes", "batch_ids": [1]},
            "expected available_only as true or false, found 'yes'",
        ),
    ],
)
def test_a_mistake_is_told(given, said):
    with pytest.raises(ConfigurationError) as caught:
        parse_request(given)
    assert said in str(caught.value)


def test_what_a_list_repeats_counts_once():
    assert parse_request({"batch_ids": [3, 1, "3", 1]}).batch_ids == (3, 1)
    assert len(parse_request({"ranges": [RANGE, RANGE]}).ranges) == 1


@pytest.mark.parametrize(
    ("name", "entries"),
    [("batch_ids", list(range(1, 102))), ("batch_ids", [1] * 100_000), ("ranges", [RANGE] * 101)],
)
def test_a_run_asks_for_so_many_ranges_or_batches_at_most(name, entries):
    """Airflow's form refuses them, too, before there is a run."""
    with pytest.raises(
        ConfigurationError, match=rf"expected at most 100 {name}, found {len(entries):,}\. Replay a"
    ):
        find_replay(run("manual", {name: entries}, hours=None), {})
    parameters()[name].resolve(entries[:100])
    with pytest.raises(ParamValidationError, match="is too long"):
        parameters()[name].resolve(entries)


def test_of_a_large_or_deep_value_a_message_shows_the_beginning():
    deep: Any = 1
    for _ in range(900):
        deep = {"a": [deep]}
    for value in ("x" * 10**6, ["x" * 10**6] * 90, {"x" * 10**6: 1}, deep, "\ud800\0", 10**4000):
        with pytest.raises(ConfigurationError) as refused:
            parse_request({"batch_ids": [value]})
        assert len(str(refused.value)) < 320
        assert str(refused.value).isprintable()
    for text in ("t:0:1-" + "9" * 5000, "t:" + "9" * 5000 + ":1-2"):
        with pytest.raises(ConfigurationError, match="expected a range as"):
            parse_range(text)


def test_tables_that_a_run_names_twice_count_once():
    assert find_tables(run(conf={"tables": ["b", "a", "b"]}), {}) == ["b", "a"]


def test_a_range_of_the_command_line():
    assert parse_range("a.topic:3:10-20") == RequestedRange("a.topic", 3, 10, 20)


@pytest.mark.parametrize(
    "text", ["", "t", "t:0", "t:0:5", "t:x:1-2", ":0:1-2", "t:0:1--2", "t:0:-1-2", "t:0:²-3"]
)
def test_a_range_that_is_none(text):
    with pytest.raises(ConfigurationError, match="expected a range as TOPIC:PARTITION:FROM-UNTIL"):
        parse_range(text)


def run(
    run_type: str = "backfill", conf: Any = None, hours: float | None = 1, logical: datetime | None = None
) -> Any:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    return SimpleNamespace(
        run_type=run_type,
        conf=conf,
        logical_date=logical,
        data_interval_start=start if hours is not None else None,
        data_interval_end=start + timedelta(hours=hours) if hours is not None else None,
    )


def test_the_parameter_with_which_a_dag_switches_openlineage_on_asks_for_nothing():
    assert find_replay(run("scheduled", hours=None), {"_selective_enable_ol": True}) is None


def test_a_backfill_asks_for_its_interval_and_nothing_else():
    request = find_replay(run(conf={"available_only": True}), {})
    assert request is not None
    assert request.window == (datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 5, 1, tzinfo=UTC))
    assert request.available_only
    with pytest.raises(ConfigurationError, match="the backfill has ranges, start, end or batch_ids"):
        find_replay(run(conf={"batch_ids": [1]}), {})
    for hours in (0, None):
        with pytest.raises(ConfigurationError, match="expected a data interval"):
            find_replay(run(hours=hours), {})


def test_any_other_run_asks_for_what_its_parameters_say():
    assert find_replay(run("scheduled"), {"ranges": []}) is None
    assert find_replay(run("manual", conf={"batch_ids": [7]}), {"ranges": []}) == ReplayRequest(
        batch_ids=(7,)
    )


def test_interval_given_to_manual_run_is_not_ignored():
    start = datetime(2026, 1, 5, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match='trigger with {"start": "2026-01-05T00:00:00.00:00"'):
        find_replay(run("manual", logical=start), {})
    # Airflow derives such an interval from the logical date.
    assert find_replay(run("manual", logical=start + timedelta(hours=1)), {}) is None
    assert find_replay(run("manual", hours=None), {}) is None
    assert find_replay(run("manual", conf={"batch_ids": [7]}, logical=start), {}) is not None


def test_parameters_of_the_dags_author_are_no_mistakes():
    assert find_replay(run("scheduled", conf={"colour": 1}), {"tone": 2}, {"colour", "tone"}) is None
    with pytest.raises(ConfigurationError, match="found 'colour'"):
        find_replay(run("scheduled", conf={"colour": 1}), {"tone": 2}, {"tone"})

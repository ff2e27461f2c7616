"""When a pipeline is overdue, and which timestamps the page in Airflow looks up to find out."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from exactbatch.airflow.page.first_records import FirstRecords, oldest_unprocessed
from exactbatch.model import LogPartition
from exactbatch.operations.freshness import differing_freshness, is_overdue
from exactbatch.operations.lag import PipelineLag
from exactbatch.operations.status import Status
from support.pipelines import flights_pipeline

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("freshness", "oldest", "overdue"),
    [
        (None, NOW - 9 * HOUR, None),
        (HOUR, None, False),  # nothing waits
        (HOUR, NOW - HOUR, False),
        (HOUR, NOW - HOUR - timedelta(microseconds=1), True),
        (HOUR, NOW + HOUR, False),  # a producer's clock is ahead
        (timedelta.max, datetime.min.replace(tzinfo=UTC), False),
    ],
)
def test_a_pipeline_is_overdue_if_its_oldest_unprocessed_record_is_older_than_its_freshness(
    freshness, oldest, overdue
):
    assert is_overdue(freshness, oldest, NOW) is overdue


def test_status_says_that_a_pipeline_is_overdue_and_that_it_has_to_be_registered_again():
    late = Status(flights_pipeline(freshness=2 * HOUR), (), (), at=NOW, freshness=HOUR, oldest=NOW - 3 * HOUR)
    assert late.as_json()["overdue"] is True
    assert late.as_json()["freshness_seconds"] == 3600
    assert late.troubles == [
        "overdue: its oldest unprocessed record is 3:00:00 old, and freshness allows 1:00:00.",
        "its freshness is 2:00:00 in its code and 1:00:00 in the ledger. The ledger decides what status, lag, doctor, "
        "dashboards and the page in Airflow show. To change it there: exactbatch init flights",
    ]
    idle = Status(flights_pipeline(freshness=HOUR), (), (), at=NOW, freshness=HOUR)
    assert (idle.overdue, idle.troubles) == (False, [])
    assert "not set in its code and 1:00:00" in str(differing_freshness(None, HOUR))


def test_without_a_freshness_a_pipeline_is_neither_overdue_nor_not():
    assert PipelineLag("p", NOW, ()).as_json()["overdue"] is None
    assert PipelineLag("p", NOW, (), freshness=HOUR).as_json()["overdue"] is False


def log(partition: int, *, end: int = 9, stable: int = 9, topic: str = "t") -> LogPartition:
    return LogPartition(
        topic=topic,
        partition=partition,
        topic_id=UUID(int=1),
        leader_epoch=0,
        earliest=2,
        last_stable=stable,
        high_watermark=end,
    )


class Asked:
    """A log whose record at offset n was written n seconds after 1970; offset 8 is a marker."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[tuple[str, int], int], bool]] = []

    def __call__(self, offsets, held):
        self.calls.append((offsets, held))
        return {place: offset * 1000 for place, offset in offsets.items() if offset != 8}


def second(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)


def test_the_first_unprocessed_records_of_a_pipeline_are_looked_up_once():
    asked, records = Asked(), FirstRecords()
    logs = [log(0), log(1), log(2, stable=5), log(3), log(0, topic="other")]
    # 0 has a lag, 1 none, 2 only what an open transaction holds back, 3 no stored offset yet.
    stored = {("t", 0): 4, ("t", 1): 9, ("t", 2): 6}
    known = records.look_up(logs, [(["t"], stored)], asked)
    assert asked.calls == [({("t", 0): 4, ("t", 3): 2}, False), ({("t", 2): 6}, True)]
    assert oldest_unprocessed(logs[:4], stored, known) == second(2)
    assert records.look_up(logs, [(["t"], stored)], asked) == known
    assert len(asked.calls) == 2


def test_a_timestamp_of_another_offset_does_not_count():
    asked, records = Asked(), FirstRecords()
    known = records.look_up([log(0)], [(["t"], {("t", 0): 4})], asked)
    assert oldest_unprocessed([log(0)], {("t", 0): 4}, known) == second(4)
    assert oldest_unprocessed([log(0)], {("t", 0): 5}, known) is None
    moved = records.look_up([log(0)], [(["t"], {("t", 0): 5})], asked)
    assert moved == {(("t", 0), 5): second(5)}


def test_two_pipelines_stand_at_different_offsets_of_one_partition():
    asked = Asked()
    known = FirstRecords().look_up([log(0)], [(["t"], {("t", 0): 4}), (["t"], {("t", 0): 6})], asked)
    assert known == {(("t", 0), 4): second(4), (("t", 0), 6): second(6)}


def test_what_was_not_found_is_looked_up_again_after_a_minute():
    now = [0.0]
    asked, records = Asked(), FirstRecords(lambda: now[0])
    wanted = [(["t"], {("t", 0): 8})]
    assert records.look_up([log(0)], wanted, asked) == {}
    now[0] = 59
    records.look_up([log(0)], wanted, asked)
    assert len(asked.calls) == 1
    now[0] = 60
    records.look_up([log(0)], wanted, asked)
    assert len(asked.calls) == 2

"""When a pipeline is overdue, and which timestamps the page in Airflow looks up to find out."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from exactbatch.airflow.page.first_records import (
    FirstRecords,
    Known,
    Unprocessed,
    find_oldest_unprocessed,
    only_current,
)
from exactbatch.model import LogPartition, StoredOffset
from exactbatch.operations.lag import PipelineLag
from exactbatch.operations.status import PipelineStatus
from exactbatch.operations.unprocessed import differing_freshness, is_overdue
from support import logs
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
    late = PipelineStatus(
        flights_pipeline(freshness=2 * HOUR), (), (), at=NOW, freshness=HOUR, oldest=NOW - 3 * HOUR
    )
    assert late.as_json()["overdue"] is True
    assert late.as_json()["freshness_seconds"] == 3600
    assert late.troubles == [
        "overdue: its oldest unprocessed record is 3:00:00 old, and freshness allows 1:00:00.",
        "its freshness is 2:00:00 in its code and 1:00:00 in the ledger. The ledger decides what status, lag, doctor, "
        "dashboards and the page in Airflow show. To store the new value in the ledger: exactbatch register flights",
    ]
    idle = PipelineStatus(flights_pipeline(freshness=HOUR), (), (), at=NOW, freshness=HOUR)
    assert (idle.overdue, idle.troubles) == (False, [])
    assert "not set in its code and 1:00:00" in str(differing_freshness(None, HOUR))


@pytest.mark.parametrize(("hours", "overdue"), [(0, None), (3, True)])
def test_a_pipeline_with_ages_that_are_not_known_is_overdue_or_may_be(hours, overdue):
    oldest = NOW - hours * HOUR
    status = PipelineStatus(
        flights_pipeline(), (), (), at=NOW, freshness=HOUR, oldest=oldest, is_age_known=False
    )
    assert status.overdue is overdue


def test_without_a_freshness_a_pipeline_is_neither_overdue_nor_not():
    assert PipelineLag("p", NOW, ()).as_json()["overdue"] is None
    assert PipelineLag("p", NOW, (), freshness=HOUR).as_json()["overdue"] is False


def log(partition: int, *, topic: str = "t", **offsets: int) -> LogPartition:
    """A partition with offsets 2 to 8, unless told otherwise."""
    return logs.log(
        partition, topic=topic, **{"earliest": 2, "last_stable": 9, "high_watermark": 9, **offsets}
    )


def standing(offsets: dict[int, int], topic_id: UUID = logs.ID) -> Unprocessed:
    """A pipeline of the topic t, by the offsets that are stored for its partitions."""
    return Unprocessed(
        ["t"],
        {
            ("t", partition): StoredOffset(
                topic="t", partition=partition, next_offset=offset, leader_epoch=None, topic_id=topic_id
            )
            for partition, offset in offsets.items()
        },
    )


def times(known: Known) -> dict[str, dict[int, datetime | None]]:
    return {
        name: {partition: each.timestamp for (_, partition), each in places.items()}
        for name, places in known.items()
    }


class Asked:
    """A log whose record at offset n was written n seconds after 1970; offset 8 is a marker, and 3 does not answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[tuple[str, int], int], bool]] = []

    def __call__(self, offsets, held):
        self.calls.append((offsets, held))
        return {
            place: None if offset == 8 else offset * 1000 for place, offset in offsets.items() if offset != 3
        }


def second(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)


def test_the_first_unprocessed_records_of_a_pipeline_are_looked_up_once():
    asked, records = Asked(), FirstRecords()
    there = [log(0), log(1), log(2, last_stable=5), log(3), log(0, topic="other")]
    # 0 has a lag, 1 none, 2 only what an open transaction holds back, 3 no stored offset yet.
    pipeline = standing({0: 4, 1: 9, 2: 6})
    known = records.look_up(there, {"p": pipeline}, asked)
    assert asked.calls == [({("t", 0): 4, ("t", 3): 2}, False), ({("t", 2): 6}, True)]
    assert find_oldest_unprocessed(there[:4], pipeline.stored, known["p"]) == second(2)
    assert records.look_up(there, {"p": pipeline}, asked) == known
    assert len(asked.calls) == 2


def test_the_log_of_a_topic_that_was_created_again_has_no_unprocessed_record():
    asked, pipeline = Asked(), standing({0: 4}, topic_id=UUID(int=9))
    known = FirstRecords().look_up([log(0)], {"p": pipeline}, asked)
    assert (asked.calls, times(known)) == ([], {"p": {}})


def test_a_timestamp_stands_in_for_that_of_a_later_offset_of_its_pipeline_until_it_is_looked_up():
    asked, records = Asked(), FirstRecords()
    both = {"p": standing({0: 4}), "q": standing({0: 2})}
    known = records.look_up([log(0)], both, asked)
    assert times(known) == {"p": {0: second(4)}, "q": {0: second(2)}}
    for offset, shown in ((4, 4), (5, 4), (9, None), (3, None)):
        oldest = find_oldest_unprocessed([log(0)], standing({0: offset}).stored, known["p"])
        assert oldest == (None if shown is None else second(shown)), offset
    both["p"] = standing({0: 5})
    assert times(records.look_up([log(0)], both, asked)) == {"p": {0: second(5)}, "q": {0: second(2)}}
    assert times(only_current(known, both)) == {"p": {}, "q": {0: second(2)}}


def test_what_is_known_of_a_partition_stays_while_its_log_is_missing():
    asked, records = Asked(), FirstRecords()
    known = records.look_up([log(0)], {"p": standing({0: 4})}, asked)
    assert records.look_up([], {"p": standing({0: 4})}, asked) == known
    assert records.look_up([], {}, asked) == {}


def test_a_record_that_is_no_longer_held_back_is_looked_up_again():
    asked, records = Asked(), FirstRecords()
    for stable in (4, 9, 9):
        records.look_up([log(0, last_stable=stable)], {"p": standing({0: 4})}, asked)
    assert asked.calls == [({("t", 0): 4}, True), ({("t", 0): 4}, False)]


def test_what_was_not_found_is_looked_up_again_after_a_minute():
    for offset, shown in ((8, None), (3, second(2))):
        now = [0.0]
        asked, records = Asked(), FirstRecords(lambda now=now: now[0])
        records.look_up([log(0)], {"p": standing({0: 2})}, asked)
        for now[0] in (10, 69, 70):
            known = records.look_up([log(0)], {"p": standing({0: offset})}, asked)
            # A partition that does not answer keeps what was known of it.
            assert times(known) == {"p": {0: shown}}
        assert len(asked.calls) == 3
        assert times(only_current(known, {"p": standing({0: offset})})) == {
            "p": {0: None} if offset == 8 else {}
        }

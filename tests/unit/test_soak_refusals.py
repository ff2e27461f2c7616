"""The soak goes on after the refusals of a window that any schedule can meet, and recognizes no others as such."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from exactbatch.errors import ReplayRefused
from exactbatch.offsets import OffsetRange
from exactbatch.planning.refused_replays import check_reached, check_whole
from exactbatch.planning.replay import ReplayPlan, Widening
from soak.work import window_is_refused

RANGE = OffsetRange("events", 0, 10, 20, topic_id=UUID(int=1))
WINDOW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def test_window_that_is_not_processed_yet():
    with pytest.raises(ReplayRefused) as refused:
        check_reached(ReplayPlan(ranges=(), beyond=(RANGE,)))
    assert window_is_refused(refused.value)


def test_window_that_cuts_batches():
    with pytest.raises(ReplayRefused) as refused:
        check_whole(ReplayPlan(ranges=(RANGE,), widened=(Widening(7, RANGE),)), WINDOW)
    assert window_is_refused(refused.value)


def test_other_refusals_end_the_soak():
    assert not window_is_refused(ReplayRefused("a newer batch has results in its ranges"))

"""How far a compaction goes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError
from exactbatch.operations.compact import compute_horizon
from exactbatch.time_text import parse_duration

offsets = st.integers(0, 100)


@given(offsets, offsets, st.lists(st.none() | offsets, max_size=3))
def test_horizon_is_never_beyond_stored_offset_nor_record_to_keep_and_never_moves_back(stored, before, since):
    previous = min(before, stored)
    horizon = compute_horizon(stored, previous, *since)
    assert previous <= horizon <= stored
    assert all(horizon <= max(previous, each) for each in since if each is not None)
    assert horizon in (previous, stored, *since)


def test_all_stored_lies_below_horizon_when_nothing_is_to_be_kept():
    assert compute_horizon(7, 0) == compute_horizon(7, 3, None, None) == compute_horizon(7, 0, 9) == 7
    assert compute_horizon(7, 0, None, 4) == 4
    assert compute_horizon(7, 5, None, 4) == 5


def test_a_duration_is_a_number_of_days_hours_or_minutes():
    assert parse_duration("30 days", what="--keep") == timedelta(days=30)
    assert parse_duration("12 hours", what="--keep") == timedelta(hours=12)
    assert parse_duration("90 minutes", what="--keep") == timedelta(minutes=90)


@pytest.mark.parametrize("text", ["", "days", "30", "-1 days", "1.5 hours", "30d", "365001 days", "1 month"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigurationError, match="^--keep: expected a length of time such as .*, found"):
        parse_duration(text, what="--keep")

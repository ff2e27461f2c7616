"""How far a compaction goes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError
from exactbatch.operations.compact import horizon_of
from exactbatch.planning.request import parse_age

offsets = st.integers(0, 100)


@given(offsets, offsets, st.lists(st.none() | offsets, max_size=3))
def test_horizon_is_never_beyond_stored_offset_nor_record_to_keep_and_never_moves_back(stored, before, since):
    previous = min(before, stored)
    horizon = horizon_of(stored, previous, *since)
    assert previous <= horizon <= stored
    assert all(horizon <= max(previous, each) for each in since if each is not None)
    assert horizon in (previous, stored, *since)


def test_all_stored_lies_below_horizon_when_nothing_is_to_be_kept():
    assert horizon_of(7, 0) == horizon_of(7, 3, None, None) == horizon_of(7, 0, 9) == 7
    assert horizon_of(7, 0, None, 4) == 4
    assert horizon_of(7, 5, None, 4) == 5


def test_an_age_is_a_number_of_days_hours_or_minutes():
    assert parse_age("30d") == timedelta(days=30)
    assert parse_age("12h") == timedelta(hours=12)
    assert parse_age("90m") == timedelta(minutes=90)


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1.5h", "30 d", "100000d", "1w"])
def test_what_is_no_age_is_told(text):
    with pytest.raises(ConfigurationError, match="such as 30d, 12h or 90m"):
        parse_age(text)

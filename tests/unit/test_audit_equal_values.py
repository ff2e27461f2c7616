"""Values that the auditor takes for equal have the same bytes; for anything else, Postgres decides."""

import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.audit.equal_values import find_unequal_records

BY = ("offset", "batch")


def table(
    values: list[Any], type_: pa.DataType, offsets: list[int] | None = None, batch: Any = 1
) -> pa.Table:
    offsets = list(range(len(values))) if offsets is None else offsets
    batches = batch if isinstance(batch, list) else [batch] * len(values)
    return pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "batch": pa.array(batches, pa.int64()),
            "value": pa.array(values, type_),
            "same": pa.array([7] * len(values), pa.int32()),
        }
    )


def unequal(records: pa.Table, rows: pa.Table) -> list[int]:
    found = find_unequal_records(records, rows, by=BY).to_pylist()
    return [offset for offset, differs in zip(records["offset"].to_pylist(), found, strict=True) if differs]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int16(), [0, 1, -1, None]),
        (pa.int32(), [0, 1, -1, None]),
        (pa.int64(), [0, 1, 2**63 - 1, None]),
        (pa.float32(), [0.0, -0.0, 1.5, math.nan, math.inf, None]),
        (pa.float64(), [0.0, -0.0, 1.5, math.nan, -math.inf, None]),
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "a", "A", "ä", "a\u0308", None]),
        (pa.binary(), [b"", b"\0", b"a", None]),
        (pa.date32(), [date(1970, 1, 1), date(2000, 1, 1), None]),
        (
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), None],
        ),
    ],
    ids=str,
)
def test_every_two_different_values_differ(type_, values):
    assert unequal(table(values, type_), table(values, type_)) == []
    for at in range(len(values)):
        for other in range(len(values)):
            rows = [values[other] if number == at else value for number, value in enumerate(values)]
            assert unequal(table(values, type_), table(rows, type_)) == ([at] if at != other else [])


def test_rows_are_paired_by_offset_and_batch():
    records = table([10, 11, 12], pa.int32(), [5, 7, 9])
    assert unequal(records, table([12, 10, 11], pa.int32(), [9, 5, 7])) == []
    assert unequal(records, table([10, 11], pa.int32(), [5, 9])) == [9]
    # Rows of no record, and of another batch or none, are found when offsets are compared.
    assert unequal(records, table([0, 0, 0], pa.int32(), [4, 6, 10])) == []
    assert unequal(records, table([0, 0, 12], pa.int32(), [5, 7, 9], [2, None, 1])) == []
    # Each of several rows counts.
    assert unequal(records, table([10, 11, 11, 12, 0], pa.int32(), [5, 7, 7, 9, 7])) == [7]
    assert unequal(records.slice(0, 0), table([1], pa.int32())) == []
    assert unequal(records, table([], pa.int32())) == []


def test_types_that_differ_are_left_to_postgres():
    assert unequal(table([1, 2], pa.int32()), table([1, 2], pa.int64())) == [0, 1]


@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 2) | st.none(), max_size=15),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2) | st.none(), st.sampled_from([1, 1, 1, 2]))),
)
def test_a_record_differs_if_any_row_of_it_does(records, rows):
    offsets = sorted(records)
    expected = table([records[offset] for offset in offsets], pa.int32(), offsets)
    found = table([value for _, value, _ in rows], pa.int32(), [o for o, _, _ in rows], [b for *_, b in rows])
    differing = {o for o, value, batch in rows if o in records and batch == 1 and value != records[o]}
    assert unequal(expected, found) == sorted(differing)

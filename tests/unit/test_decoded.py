"""What was decoded, without the rows of refused values."""

from dataclasses import fields

import pyarrow as pa

from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import without_values


def test_every_part_loses_the_rows_of_refused_values():
    """Value 1 gives two rows, value 2 is a reject."""
    decoded = Decoded(
        rows=pa.record_batch({"n": pa.array([0, 10, 11, 3])}),
        kept=pa.array([0, 1, 1, 3]),
        rejects=((2, "bad"),),
        tombstones=1,
        deleted=pa.array([False, True, True, None]),
        unavailable=pa.array([["a"], ["b"], None, ["c"]]),
        truncated=pa.array([None, False, False, True]),
        written_nulls=pa.array([False, False, False, True]),
    )
    left = without_values(decoded, [(1, "first"), (1, "second")])
    assert left == Decoded(
        rows=pa.record_batch({"n": pa.array([0, 3])}),
        kept=pa.array([0, 3]),
        rejects=((1, "first"), (2, "bad")),
        tombstones=1,
        deleted=pa.array([False, None]),
        unavailable=pa.array([["a"], ["c"]]),
        truncated=pa.array([None, True]),
        written_nulls=pa.array([False, False, False, True]),
    )
    assert None not in [getattr(left, field.name) for field in fields(left)]


def test_parts_that_there_are_not_stay_away():
    decoded = Decoded(rows=pa.record_batch({"n": pa.array([0, 1])}), kept=pa.array([0, 1]))
    assert without_values(decoded, [(0, "bad")]) == Decoded(
        rows=pa.record_batch({"n": pa.array([1])}), kept=pa.array([1]), rejects=((0, "bad"),)
    )

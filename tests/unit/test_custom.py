"""A user's function makes rows and rejects, and every mistake in it is reported, not stored."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exactbatch.errors import ConfigurationError, ReadFailed, TasksFailed
from exactbatch.formats import Custom
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP
from support.decoding import decode, rows

Returned = tuple[pa.RecordBatch, Mapping[int, str]]


def lengths(batch: pa.RecordBatch) -> Returned:
    """The length of each value, except of empty ones."""
    length = pc.binary_length(batch.column("value"))
    empty = pc.equal(length, 0)
    rejects = dict.fromkeys(batch.column(0).filter(empty).to_pylist(), "expected bytes, found none")
    rows = pa.record_batch({"n": length, "value_index": batch.column(0)}).filter(pc.invert(empty))
    return rows, rejects


def mistake(function: Callable[[pa.RecordBatch], Any], schema: str = "n int") -> str:
    """What is said of a function over two values."""
    with pytest.raises(ConfigurationError) as raised:
        decode(Custom(function, schema), b"a", b"b")
    assert not raised.value.retryable
    assert str(raised.value).startswith("function ")
    return str(raised.value)


def test_a_function_makes_rows_and_rejects():
    decoded = decode(Custom(lengths, "n int"), b"a", None, b"", b"ccc", b"")
    assert decoded.rows.to_pylist() == [{"n": 1}, {"n": 3}]
    assert decoded.kept.to_pylist() == [0, 3]
    assert decoded.tombstones == 1
    assert decoded.rejects == ((2, "expected bytes, found none"), (4, "expected bytes, found none"))


def test_a_function_is_not_called_for_nothing():
    def never(_: pa.RecordBatch) -> Returned:
        raise AssertionError

    assert rows(Custom(never, "n int")) == []
    assert decode(Custom(never, "n int"), None, None).tombstones == 2


def test_rows_may_come_in_any_order():
    def backwards(batch: pa.RecordBatch) -> Returned:
        made, rejects = lengths(batch)
        return made.take(pa.array(range(len(made) - 1, -1, -1), pa.int64())), rejects

    assert rows(Custom(backwards, "n int"), b"a", b"bb", b"ccc") == [{"n": 1}, {"n": 2}, {"n": 3}]


def select_rows(*indexes: int, **columns: pa.Array) -> pa.RecordBatch:
    made = columns or {"n": pa.array([0] * len(indexes), pa.int32())}
    return pa.record_batch({"value_index": pa.array(indexes, pa.int64()), **made})


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ((select_rows(0), {}), "found no row or reject for 1: 1"),
        ((select_rows(0, 1, 1), {}), "found several rows or rejects for 1: 1"),
        ((select_rows(0, 1), {1: "x"}), "found several rows or rejects for 1: 1"),
        ((select_rows(0, 1, 2), {}), "found a row or reject without a value for 1: 2"),
        ((select_rows(0, 1), {7: "x"}), "found a row or reject without a value for 1: 7"),
        ((select_rows(0, 2), {}), "found no row or reject for 1: 1"),
        ((select_rows(0), {1: ""}), "expected rejects as a mapping of value_index to a reason"),
        ((select_rows(0), {"1": "x"}), "expected rejects as a mapping of value_index to a reason"),
        (
            select_rows(0, 1),
            "expected a pair of a pyarrow.RecordBatch and a mapping of rejects, found RecordBatch",
        ),
        (None, "found NoneType"),
        ((select_rows(0, 1), []), "found tuple"),
        ((select_rows(0, 1).to_pylist(), {}), "found tuple"),
        (
            (select_rows(0, 1, n=pa.array([0, 0])), {}),
            "columns value_index int64, n int32, found value_index int64, n int64",
        ),
        ((select_rows(0, 1, m=pa.array([0, 0], pa.int32())), {}), "found value_index int64, m int32"),
        ((select_rows(0, 1).select(["n"]), {}), "found n int32"),
        ((select_rows(0, None), {}), "expected one row or reject for each value_index"),
    ],
)
def test_a_mistake_ends_the_batch_and_says_what_was_expected(returned, found):
    assert found in mistake(lambda batch: returned)


def test_an_exception_in_the_function_ends_the_batch():
    assert "found ZeroDivisionError: division by zero" in mistake(lambda batch: 1 / 0)


def test_what_may_pass_is_left_to_the_retry():
    def raises(error: Exception) -> Custom:
        def function(_: pa.RecordBatch) -> Returned:
            raise error

        return Custom(function, "n int")

    with pytest.raises(ReadFailed):
        decode(raises(ReadFailed("later")), b"a")
    with pytest.raises(
        TasksFailed, match=r"function .*function of the format Custom raised OSError: net\. "
    ) as found:
        decode(raises(OSError("net")), b"a")
    assert found.value.retryable


def test_broken_arrow_data_ends_the_batch():
    text = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff")
    )
    assert "expected valid Arrow data" in mistake(lambda batch: (select_rows(0, 1, t=text), {}), "t text")


def test_a_row_that_postgres_cannot_store_is_a_reject():
    def function(batch: pa.RecordBatch) -> Returned:
        text = batch.column("value").cast(pa.string())
        times = pa.array(
            [EARLIEST_TIMESTAMP - (each == "old") for each in text.to_pylist()], pa.timestamp("us")
        )
        lists = pa.array([[each] for each in text.to_pylist()], pa.list_(pa.string()))
        return pa.record_batch({"value_index": batch.column(0), "a": text, "t": times, "l": lists}), {}

    decoded = decode(Custom(function, "a text, t timestamp, l text[]"), b"x", b"a\0", b"old", b"y")
    assert decoded.kept.to_pylist() == [0, 3]
    assert [(index, why[:10]) for index, why in decoded.rejects] == [(1, "column 'a'"), (2, "column 't'")]


def test_a_column_named_as_the_index_is_refused():
    with pytest.raises(ConfigurationError, match="column 'value_index' in .* is reserved"):
        Custom(lengths, "value_index int")

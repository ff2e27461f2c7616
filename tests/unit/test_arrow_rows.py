"""Arrow columns as rows of a binary COPY."""

from decimal import Decimal

import pyarrow as pa

from exactbatch.compiled.arrow_rows import ArrowRows

SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("amount", pa.decimal128(10, 2)),
        ("yes", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
    ]
)
ROW = (7, Decimal("12.50"), True, 1_700_000_000_000_000, 20_000, "seven", b"\x00\x01")
NULLS = (None,) * len(SCHEMA)


def batch(*rows):
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def test_a_batch_leaves_nothing_in_the_rows_of_the_next_one():
    """Large and small ones, with nulls where the one before had values, and the other way round."""
    texts = (*ROW[:5], "t" * 5_000, b"b" * 5_000)
    batches = [batch(ROW), batch(NULLS), batch(*[texts] * 30), batch(NULLS, ROW), batch(*[NULLS, texts] * 20)]
    rows = ArrowRows(SCHEMA)
    assert [rows.write(each) for each in batches] == [ArrowRows(SCHEMA).write(each) for each in batches]


def test_a_slice_gives_its_own_rows_alone():
    whole = batch(NULLS, ROW, ROW, NULLS, (*ROW[:5], "other", b""))
    rows = ArrowRows(SCHEMA)
    each = [rows.write(whole.slice(at, 1)) for at in range(len(whole))]
    assert b"".join(each) == rows.write(whole)
    assert rows.write(whole.slice(1, 3)) == b"".join(each[1:4])


def test_rows_begin_with_constants_whatever_their_columns_hold():
    constants = {"text": "é" * 249, "at": None, "number": -7}
    rows = ArrowRows(SCHEMA, constants=constants)
    assert rows.names == ["text", "at", "number", "amount", "yes", "day", "bytes"]
    whole = batch(ROW, NULLS, (*ROW[:5], "other", b"b" * 5_000))
    expected = [{**row, **constants} for row in whole.to_pylist()]
    in_order = pa.schema([SCHEMA.field(name) for name in rows.names])
    of_columns = ArrowRows(in_order).write(pa.RecordBatch.from_pylist(expected, schema=in_order))
    assert rows.write(whole) == of_columns
    assert rows.write(whole.drop_columns(list(constants))) == of_columns


def test_rows_may_be_constants_alone():
    rows = ArrowRows(pa.schema([("a", pa.int32()), ("b", pa.string())]), constants={"b": "x", "a": 1})
    of_columns = ArrowRows(pa.schema([("b", pa.string()), ("a", pa.int32())]))
    whole = pa.record_batch({"a": pa.array([1, 1], pa.int32()), "b": pa.array(["x", "x"])})
    assert rows.write(whole) == of_columns.write(whole)

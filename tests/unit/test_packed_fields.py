"""Columns that rows keep of their records, packed as COPY writes them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch import Json
from exactbatch.batch.rows.fast_decoder import FastDecoder, LoopDecoder
from exactbatch.batch.rows.fast_path import Packing
from exactbatch.batch.rows.json_loop import JsonLoop
from exactbatch.batch.staging import stage
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.columns import Column
from exactbatch.compiled.arrow_rows import ArrowRows
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.packed_fields import PackedFields
from exactbatch.compiled.row_formats import PACKED, PACKED_TYPE
from exactbatch.compiled.row_frame import NO_FRAME
from exactbatch.errors import TasksFailed
from exactbatch.kafka.records import MessageRecords

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_()), ("d", pa.decimal128(10, 2))])
NUMBER = pa.field("number", pa.int64())
rows = st.lists(
    st.tuples(
        st.none() | st.integers(-9, 9),
        st.none() | st.text(max_size=9),
        st.none() | st.booleans(),
        st.none() | st.decimals(-99, 99, places=2),
    ),
    max_size=9,
)

positions = (
    st.permutations(range(4))
    | st.lists(st.integers(0, 3), min_size=1, max_size=6)
    | st.integers(0, 3).map(lambda position: [position] * 20)
)


def batch_of(rows) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@settings(deadline=None)
@given(rows, positions)
def test_rows_with_packed_fields_are_those_of_the_columns(values, positions):
    """Any columns, in any order, also several times: beside a number, as beside a column that is computed."""
    batch = batch_of(values)
    names = [SCHEMA.names[position] for position in positions]
    every = ArrowRows(SCHEMA).packed(batch)
    ends = np.cumsum([len(value.as_buffer()) for value in every], dtype=np.int64)
    packed = PackedFields(len(SCHEMA), positions).of_rows(b"".join(every.to_pylist()), ends)
    packed.validate(full=True)
    numbers = pa.array(range(len(batch)), pa.int64())
    schema = pa.schema([NUMBER, (PACKED, PACKED_TYPE)])
    written = ArrowRows(schema, names)
    assert written.names == ["number", *names]
    distinct = [f"{at} {name}" for at, name in enumerate(names)]
    whole = pa.RecordBatch.from_arrays([numbers, *map(batch.column, names)], ["number", *distinct])
    expected = ArrowRows(whole.schema).write(whole)
    assert written.write(pa.RecordBatch.from_arrays([numbers, packed], schema=schema)) == expected


@pytest.mark.parametrize("positions", [[-1], [0, 4], [1, -1, 2]])
def test_a_position_without_a_column_is_refused(positions):
    """The compiled loop checks no bounds."""
    with pytest.raises(ValueError, match="expected positions from 0 to 3, found"):
        PackedFields(4, positions)


FORMAT = Json("a int, b text, c boolean")
VALUES = [
    b'{"a": 1, "b": "one", "c": true}',
    b'{"a": 2, "b": "\xc3\xa9", "c": null}',
    b'{"a": 3.0, "b": "declined", "c": false}',
    b'{"a": "x"}',
    None,
    b'{"a": null, "b": "last"}',
]


@pytest.mark.parametrize("by_loop", [True, False])
@pytest.mark.parametrize(
    "records", [[0, 1, 5], [0, 2, 1, 3, 4, 5], [2, 3]], ids=["taken", "mixed", "declined"]
)
@pytest.mark.parametrize("names", [["a", "b", "c"], ["c", "a"], ["b"]])
def test_a_decoder_packs_what_the_format_gives(by_loop, records, names):
    schema = pa.schema([(column.name, column.arrow_type) for column in FORMAT.columns])
    loop = JsonLoop(JsonKernel(FORMAT.columns, {}, NO_FRAME))
    packing = Packing(names, used=["b"])
    columns = ArrowRows(pa.schema([schema.field(name) for name in names]))
    decoder = FastDecoder(LoopDecoder(loop, schema, packing) if by_loop else None, columns)
    messages = [
        Message("t", 0, offset, value=VALUES[index], timestamp=(1, 5)) for offset, index in enumerate(records)
    ]
    read = MessageRecords(messages, np.arange(len(records)))
    expected = FORMAT.decode(read.values())
    decoded = decoder.decode(read, lambda others: FORMAT.decode(others.values()))
    assert (decoded.taken > 0) == (by_loop and records != [2, 3])
    assert decoded.kept.equals(expected.kept)
    assert (decoded.rejects, decoded.tombstones) == (expected.rejects, expected.tombstones)
    assert decoded.rows.column("b").equals(expected.rows.column("b"))
    assert decoded.rows.column(PACKED).equals(columns.packed(expected.rows))


def test_packed_rows_are_not_staged_by_a_worker_without_compiled_code(monkeypatch):
    monkeypatch.setattr(stage, "unavailable", lambda: "no numba")
    packed = pa.record_batch({PACKED: pa.array([b""], PACKED_TYPE)})
    postgres: Any = None  # it must not connect
    with pytest.raises(TasksFailed, match="the one that stages cannot: no numba"):
        stage.stage_rows([packed], StagingTables(1, 7), postgres, [Column("a", "integer")], 1, packed=["a"])

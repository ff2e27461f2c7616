"""The decoder of transforms gives what the format gives."""

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from exactbatch import Json
from exactbatch.batch.rows.json_loop import FastDecoder, JsonLoop
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.row_frame import NO_FRAME
from exactbatch.formats.decoders import find_decoder
from exactbatch.kafka.records import MessageRecords

FORMAT = Json("a int, b text, c boolean")
VALUES = [
    b'{"a": 1, "b": "one", "c": true}',
    b'{"a": 2, "b": "\xc3\xa9", "c": null}',
    b'{"a": 3.0, "b": "declined", "c": false}',
    b'{"a": "x"}',
    None,
    b'{"a": null, "b": "last"}',
]


@pytest.mark.parametrize(
    "records", [[0, 1, 5], [0, 2, 1, 3, 4, 5], [2, 3]], ids=["taken", "mixed", "declined"]
)
def test_records_that_the_loop_declines_are_decoded_among_the_others(records):
    schema = pa.schema([(column.name, column.arrow_type) for column in FORMAT.columns])
    decoder = FastDecoder(JsonLoop(JsonKernel(FORMAT.columns, {}, NO_FRAME)), schema)
    messages = [
        Message("t", 0, offset, value=VALUES[index], timestamp=(1, 5)) for offset, index in enumerate(records)
    ]
    read = MessageRecords(messages, np.arange(len(records)))
    expected = find_decoder(FORMAT).decode(read.values())
    decoded = decoder.decode(read, lambda others: find_decoder(FORMAT).decode(others.values()))
    assert (decoded.fast_count > 0) == (records != [2, 3])
    assert decoded.kept.equals(expected.kept)
    assert (decoded.rejects, decoded.tombstones) == (expected.rejects, expected.tombstones)
    assert decoded.rows.equals(expected.rows)

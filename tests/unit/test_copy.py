"""Rows and rejects are copied by turns."""

from collections.abc import Generator, Iterator

import psycopg2
import pyarrow as pa
import pytest

from exactbatch.batch.rows.copy import ArrowEncoder, EncodedRows, _CopyStream, copy_in_turns
from exactbatch.batch.rows.rejected import PendingRejects
from exactbatch.postgres.connection import Connection


def test_an_error_closes_what_is_read_from() -> None:
    """The traceback of the error holds the generator, and with it a consumer."""
    closed = []

    def rows() -> Generator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    def refuse(given: Iterator[int]) -> None:
        next(given)
        raise ZeroDivisionError

    reading = rows()
    with pytest.raises(ZeroDivisionError):
        copy_in_turns(reading, PendingRejects(), refuse, lambda rejects: None)
    assert closed == [True]


def test_a_postgres_that_answers_too_late_gets_no_more() -> None:
    taken = []

    def rows() -> Iterator[EncodedRows]:
        taken.append(True)
        yield EncodedRows(b"", 0)

    connection = Connection.__new__(Connection)
    connection.hung_up = True
    with pytest.raises(psycopg2.OperationalError, match="the connection was closed"):
        _CopyStream(rows(), connection).read()
    assert taken == []


OIDS = {
    pa.int16(): 21,
    pa.int32(): 23,
    pa.int64(): 20,
    pa.float32(): 700,
    pa.float64(): 701,
    pa.bool_(): 16,
    pa.binary(): 17,
    pa.date32(): 1082,
    pa.timestamp("us"): 1114,
    pa.timestamp("us", "UTC"): 1184,
    pa.decimal128(10, 2): 1700,
    pa.string(): 25,
}  # typname and oid in src/include/catalog/pg_type.dat


@pytest.mark.parametrize("type_", OIDS, ids=str)
def test_an_array_names_the_type_of_its_elements(type_):
    """Postgres refuses another one. A small array, an empty one, null, and one that is larger than a block."""
    arrays = pa.array([[None], [], None, [None] * 200_000, [None]], pa.list_(type_))
    numbers = pa.array(range(len(arrays)), pa.int32())
    batch = pa.record_batch([numbers, arrays], ["n", "a"])
    encoded = ArrowEncoder(pa.schema([("a", arrays.type), ("n", pa.int32())])).encode(batch)
    lengths = [24, 20, -1, 20 + 4 * 200_000, 24]  # 20 bytes come before the elements
    at = 0
    for number, length in enumerate(lengths):
        assert encoded.data[at : at + 6] == (2).to_bytes(2) + length.to_bytes(4, signed=True)
        at += 6
        if length >= 0:
            assert encoded.data[at + 8 : at + 12] == OIDS[type_].to_bytes(4)
            at += length
        assert encoded.data[at : at + 8] == (4).to_bytes(4) + number.to_bytes(4)
        at += 8
    assert at == len(encoded.data)

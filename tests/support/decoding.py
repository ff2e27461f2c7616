"""Decode values by a format, and check what holds of every outcome."""

from typing import Any

import pyarrow as pa

from exactbatch.formats import Format, Json
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder


def decode(format_: Format, *values: bytes | None) -> Decoded:
    """Decode, and check what holds of every outcome."""
    decoded = find_decoder(format_).decode(pa.array(values, pa.binary()))
    types = [(column.name, column.arrow_type) for column in format_.columns]
    assert [(field.name, field.type) for field in decoded.rows.schema] == types
    decoded.rows.validate(full=True)
    kept, rejected = decoded.kept.to_pylist(), [index for index, _ in decoded.rejects]
    nulls = [i for i, value in enumerate(values) if value is None and format_.null_is_tombstone]
    assert len(decoded.rows) == len(kept)
    assert kept == sorted(kept)
    accounted = sorted([*kept, *rejected, *nulls])
    if format_.gives_several_rows:
        assert len({*rejected, *nulls}) == len(rejected) + len(nulls)
        assert not {*rejected, *nulls} & {*kept}
    else:
        assert accounted == list(range(len(values)))
    assert decoded.tombstones == len(nulls)
    return decoded


def rows(format_: Format, *values: bytes | None) -> list[dict[str, Any]]:
    """The rows of values that all decode."""
    decoded = decode(format_, *values)
    assert decoded.rejects == ()
    return list(decoded.rows.to_pylist())


def value_of(type_: str, written: str) -> Any:
    """Decode one field of a JSON object into a column of a type."""
    [row] = rows(Json(f"a {type_}"), b'{"a":%s}' % written.encode())
    return row["a"]


def reason(format_: Format, value: bytes) -> str:
    """Why a value is refused."""
    [(index, why)] = decode(format_, value).rejects
    assert index == 0
    return why

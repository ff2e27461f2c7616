"""Records: their values, after what their headers say of schemas, and the columns from their keys and headers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from exactbatch.formats.bounds import check_size, measure_size
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, without_values
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.format import Format
from exactbatch.formats.message.record_headers import UNREADABLE, Messages, Unreadable, headers_as_json
from exactbatch.formats.message.spec import WithKeyAndHeaders
from exactbatch.formats.registry.frames import framed
from exactbatch.formats.registry.schema_id_headers import Framed


class RecordDecoder:
    """Decodes the records of a format of values, or of WithKeyAndHeaders, its `spec`."""

    def __init__(self, spec: Format, values: Decoder[Any] | None = None) -> None:
        """`values` decodes the values; without it, the decoder of the spec does."""
        self.spec = spec
        self._key: Decoder[Any] | None = None
        self._headers: dict[str, Decoder[Any]] = {}
        self._all_headers: str | None = None
        own = spec
        if isinstance(spec, WithKeyAndHeaders):
            own, self._all_headers = spec.value, spec.all_headers
            self._key = None if spec.key is None else find_decoder(spec.key)
            self._headers = {name: find_decoder(each) for name, each in spec.headers.items()}
        self.values = find_decoder(own) if values is None else values

    def decode(
        self, values: pa.BinaryArray, messages: Messages, *, keeps_unavailable: bool = False
    ) -> Decoded:
        """Decode n records; a value, key or header that is not of its format makes its record a reject.

        With `keeps_unavailable`, rows that have unavailable values are kept, unless the spec is a
        WithKeyAndHeaders.
        """
        keeps = keeps_unavailable and self.spec.has_unavailable_values
        decode = self.values.decode_with_unavailable if keeps else self.values.decode
        decoded = framed(self.values.spec, "value", values, messages).decode(decode)
        if self._key is not None:
            keys = framed(self._key.spec, "key", messages.keys(), messages)
            decoded = _joined(decoded, "key", self._key, keys)
        if self._all_headers is None and not self._headers:
            return decoded
        headers = messages.headers()
        decoded = _with_readable(decoded, headers)
        for name, decoder in self._headers.items():
            named = pa.array([dict(pairs or ()).get(name) for pairs in headers], pa.binary())
            decoded = _joined(decoded, f"header {name!r}", decoder, Framed(named))
        if self._all_headers is None:
            return decoded
        as_json = pa.array(list(map(headers_as_json, headers)), pa.string())
        check_size(len(decoded.kept), measure_size(as_json, decoded.kept.to_numpy()))
        as_json = as_json.take(decoded.kept)
        return replace(decoded, rows=decoded.rows.append_column(self._all_headers, as_json))


def _with_readable(decoded: Decoded, headers: Sequence[Any]) -> Decoded:
    """Return the rows without those whose headers cannot be read."""
    unreadable = {index for index, pairs in enumerate(headers) if isinstance(pairs, Unreadable)}
    if not unreadable:
        return decoded
    rows = [row for row, index in enumerate(decoded.kept.to_pylist()) if index in unreadable]
    return _without(decoded, [(row, UNREADABLE) for row in rows])


def _joined(decoded: Decoded, what: str, decoder: Decoder[Any], values: Framed) -> Decoded:
    """Add the columns of another part of the messages, without the rows whose part is refused."""
    # The rows of one record repeat its key and headers.
    check_size(len(decoded.kept), measure_size(values.values, decoded.kept.to_numpy()))
    part = values.take(decoded.kept).decode(decoder.decode)
    # For each row, the row of its part: -1 if the part is null, which is a tombstone in some formats.
    source = np.full(len(decoded.rows), -1)
    source[part.kept.to_numpy()] = np.arange(len(part.rows))
    columns = part.rows.take(pa.array(source, mask=source < 0))
    rows = decoded.rows
    for name, column in zip(part.rows.schema.names, columns.columns, strict=True):
        rows = rows.append_column(name, column)
    joined = replace(decoded, rows=rows)
    if not part.rejects:
        return joined
    return _without(joined, [(row, f"{what}: {reason}") for row, reason in part.rejects])


def _without(decoded: Decoded, refused: Sequence[tuple[int, str]]) -> Decoded:
    """Return the rows of records without a refused row; the other records become rejects."""
    return without_values(decoded, [(decoded.kept[row].as_py(), reason) for row, reason in refused])

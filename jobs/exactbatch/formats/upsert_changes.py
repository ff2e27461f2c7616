"""Turn decoded values into changes of an Upsert, in which a delete is a row as well."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import POSITION_EPOCH, UNAVAILABLE_COLUMNS, key_is_null
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, without_values
from exactbatch.formats.message.record_headers import Messages
from exactbatch.formats.registry.frames import framed
from exactbatch.offsets import TopicPartition

_NO_KEY_FORMAT: Final = (
    "a null value deletes the row of its key, but the pipeline does not say what the key is: give Pipeline(…) "
    "key=Json(…). WithKeyAndHeaders(key=…) only adds columns to values that are not null"
)


def as_changes(
    decoded: Decoded,
    values: pa.BinaryArray,
    messages: Messages,
    key: Decoder[Any] | None,
    key_columns: tuple[str, ...],
    *,
    tombstones_delete: bool,
    keeps_unavailable: bool = False,
) -> Decoded:
    """Add the column `deleted` to decoded rows and, if tombstones delete, a deleting row for each tombstone.

    With `keeps_unavailable`, add a column as well that lists the columns of each row's unavailable values. A row
    that stands for a truncate is a delete whose key columns are null.

    `values` are the values of the n records `messages`, whose keys and headers are read only where a null value
    deletes. `key` decodes the keys; None if the pipeline has no format for them. A tombstone's row has the columns of
    its decoded key, and null elsewhere. A key that cannot be decoded, and a row whose key is null, are rejects.
    """
    deleted = (
        decoded.deleted if decoded.deleted is not None else pa.repeat(pa.scalar(False), len(decoded.rows))
    )
    rows = [_without_keys_of_truncates(decoded, key_columns).append_column("deleted", deleted)]
    if keeps_unavailable:
        unavailable = decoded.unavailable
        if unavailable is None:
            unavailable = pa.nulls(len(deleted), pa.list_(pa.string()))
        rows = [rows[0].append_column(UNAVAILABLE_COLUMNS, unavailable)]
    kept, rejects = [decoded.kept], list(decoded.rejects)
    tombstones = decoded.tombstones
    if tombstones and tombstones_delete:
        is_null = pc.is_null(values)
        if decoded.written_nulls is not None:
            is_null = pc.or_(is_null, decoded.written_nulls)
        positions = pc.indices_nonzero(is_null).cast(pa.int64())
        tombstones -= len(positions)
        if key is None:
            rejects += [(position, _NO_KEY_FORMAT) for position in positions.to_pylist()]
        else:
            keys = framed(key.spec, "key", messages.keys(), messages).take(positions)
            decoded_keys = keys.decode(key.decode)
            rows.append(_deletes(decoded_keys.rows, rows[0].schema))
            kept.append(positions.take(decoded_keys.kept))
            refused = list(decoded_keys.rejects)
            if decoded_keys.tombstones:
                # Null, or text that counts as null or carries no row in the format of the key.
                given = {*decoded_keys.kept.to_pylist(), *(at for at, _ in refused)}
                lacking = [at for at in range(len(positions)) if at not in given]
                refused += [(at, "expected a key, found null") for at in lacking]
            rejects += [(positions[at].as_py(), f"key: {reason}") for at, reason in refused]
    all_rows, all_kept = pa.concat_batches(rows), pa.concat_arrays(kept)
    if len(rows) > 1:  # `kept` ascends: back to the order of the records
        order = pc.sort_indices(all_kept)
        all_rows, all_kept = all_rows.take(order), all_kept.take(order)
    changes = Decoded(all_rows, all_kept, tuple(rejects), tombstones, truncated=decoded.truncated)
    return _without_null_keys(changes, key_columns)


def epoch_starts(epochs: Sequence[Mapping[TopicPartition, int]], partition: TopicPartition) -> list[int]:
    """Return the offsets of a partition at which epochs of positions begin, in order."""
    return sorted(epoch.get(partition, 0) for epoch in epochs)


def with_epochs(changes: Decoded, offsets: pa.Int64Array, starts: Sequence[int]) -> Decoded:
    """Add the column for the epoch of positions: how many of the offsets in `starts`, which ascend, a change has
    reached; null for none. `offsets` are the offsets of the n records."""
    reached = np.searchsorted(np.array(starts, np.int64), offsets.take(changes.kept).to_numpy(), side="right")
    epochs = pa.array(reached, pa.int32())
    epochs = pc.if_else(pc.equal(epochs, 0), pa.scalar(None, pa.int32()), epochs)
    return replace(changes, rows=changes.rows.append_column(POSITION_EPOCH, epochs))


def _deletes(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = {name: keys.column(name) for name in keys.schema.names}
    columns["deleted"] = pa.repeat(pa.scalar(True), len(keys))
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(keys), field.type)) for field in schema], schema=schema
    )


def _without_keys_of_truncates(decoded: Decoded, key_columns: tuple[str, ...]) -> pa.RecordBatch:
    rows = decoded.rows
    if decoded.truncated is None:
        return rows
    for index, name in enumerate(rows.schema.names):
        if name in key_columns:
            values = rows.column(index)
            keys = pc.if_else(decoded.truncated, pa.scalar(None, values.type), values)
            rows = rows.set_column(index, rows.schema.field(index), keys)
    return rows


def _without_null_keys(changes: Decoded, key_columns: tuple[str, ...]) -> Decoded:
    """Return the changes without those that lack a key; a truncate has none."""
    if not any(changes.rows.column(name).null_count for name in key_columns):
        return changes
    refused = []
    for name in key_columns:
        lacking = pc.is_null(changes.rows.column(name))
        if changes.truncated is not None:
            lacking = pc.and_not(lacking, changes.truncated)
        positions = changes.kept.filter(lacking).to_pylist()
        refused += [(position, key_is_null(name)) for position in positions]
    return without_values(changes, refused)

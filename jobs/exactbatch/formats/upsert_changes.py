"""Rows as changes of a key: a delete is a row, too."""

from typing import TYPE_CHECKING, Final

from exactbatch.formats.format import Decoded, Format

if TYPE_CHECKING:
    import pyarrow as pa

_NO_KEY_FORMAT: Final = (
    "expected a key format, which tells what a null value deletes, found none: give the pipeline key=Json(…)"
)


def as_changes(
    decoded: Decoded,
    values: "pa.BinaryArray",
    keys: "pa.BinaryArray",
    key: Format | None,
    key_columns: tuple[str, ...],
    *,
    tombstones_delete: bool,
) -> Decoded:
    """Add the column `deleted` to decoded rows and, if they delete, a row that does so for each tombstone.

    `values` and `keys` are those of the n records; a tombstone's row has the columns of its decoded key, and
    null elsewhere. A key that does not decode, and a row whose key is null, is a reject.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    deleted = (
        decoded.deleted if decoded.deleted is not None else pa.repeat(pa.scalar(False), len(decoded.rows))
    )
    rows = [decoded.rows.append_column("deleted", deleted)]
    kept, rejects = [decoded.kept], list(decoded.rejects)
    tombstones = decoded.tombstones
    if tombstones and tombstones_delete:
        tombstones = 0
        positions = pc.indices_nonzero(pc.is_null(values)).cast(pa.int64())
        if key is None:
            rejects += [(position, _NO_KEY_FORMAT) for position in positions.to_pylist()]
        else:
            of_keys = key.decode(keys.take(positions))
            rows.append(_deletes(of_keys.rows, rows[0].schema))
            kept.append(positions.take(of_keys.kept))
            refused = list(of_keys.rejects)
            if of_keys.tombstones:
                null_keys = pc.indices_nonzero(pc.is_null(keys.take(positions))).to_pylist()
                refused += [(at, "expected one, found null") for at in null_keys]
            rejects += [(positions[at].as_py(), f"key: {reason}") for at, reason in refused]
    all_rows, all_kept = pa.concat_batches(rows), pa.concat_arrays(kept)
    if len(rows) > 1:  # in the order of their records again, which `kept` promises
        order = pc.sort_indices(all_kept)
        all_rows, all_kept = all_rows.take(order), all_kept.take(order)
    return _without_null_keys(Decoded(all_rows, all_kept, tuple(rejects), tombstones), key_columns)


def _deletes(keys: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = {name: keys.column(name) for name in keys.schema.names}
    columns["deleted"] = pa.repeat(pa.scalar(True), len(keys))
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(keys), field.type)) for field in schema], schema=schema
    )


def _without_null_keys(changes: Decoded, key_columns: tuple[str, ...]) -> Decoded:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not any(changes.rows.column(name).null_count for name in key_columns):
        return changes
    rejects = list(changes.rejects)
    good = pa.repeat(pa.scalar(True), len(changes.rows))
    for name in key_columns:
        null = pc.and_(good, pc.is_null(changes.rows.column(name)))
        rejects += [
            (position, f"column {name!r}: expected the key of the row, found null")
            for position in changes.kept.filter(null).to_pylist()
        ]
        good = pc.and_not(good, null)
    return Decoded(changes.rows.filter(good), changes.kept.filter(good), tuple(rejects), changes.tombstones)

"""A proposed pipeline: recognize the format of a sample, fit its columns, choose the sink."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from exactbatch.columns import UNCHANGED_COLUMNS
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoded import Decoded
from exactbatch.pipeline import Pipeline
from exactbatch.sampling.draft import DraftColumn
from exactbatch.sampling.fitting import fit
from exactbatch.sampling.key_and_sink import TopicFacts, decode_changes, destination
from exactbatch.sampling.recognition import recognize

_LONG: Final = 3000  # bytes of the records of a test


@dataclass(frozen=True, slots=True)
class Proposal:
    """A pipeline for a topic, and what a reader should know of how it came to be.

    `label` names the format, `columns` are those that were drafted, `broken` are the records, by their index in the
    sample, that no schema accepts, and `decoded` is what the pipeline makes of the sample.
    """

    pipeline: Pipeline
    label: str
    columns: tuple[DraftColumn, ...]
    notes: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]
    decoded: Decoded


def propose(name: str, topic: str, target: str, facts: TopicFacts) -> Proposal:
    """Return a pipeline that decodes all records of a sample, except those that no schema accepts.

    Raises ConfigurationError for a sample of null values alone, and for values of a schema registry without its
    address.
    """
    values = facts.values
    present = [value for value in values.to_pylist() if value is not None]
    if not present:
        raise ConfigurationError(
            f"all {len(values):,} sampled records of {topic!r} are tombstones: their values are null, and say nothing "
            f"about columns. Sample the topic again once it has values, or sample more: --records."
        )
    draft = recognize(present, facts.registry)
    fitted = fit(draft, values)
    to = destination(draft, fitted, facts, target)
    pipeline = Pipeline(name=name, topics=(topic,), value=to.value, message_key=to.key, sink=to.sink)
    return Proposal(
        pipeline,
        draft.label,
        fitted.columns,
        (*draft.notes, *to.notes),
        fitted.broken,
        decode_changes(to, facts),
    )


def chosen_records(
    decoded: Decoded, values: pa.BinaryArray, *, count: int, with_tombstone: bool
) -> Sequence[int]:
    """Return the indexes of a few short records for a test, in their order: those with most columns, and a shorter one.

    Of long records, there is only one. Records that no test can expect are left out.
    """
    sizes = [len(value.as_py() or b"") for value in values]
    kept = sorted(set(decoded.kept.to_pylist()))
    filled = dict.fromkeys(kept, 0)
    for column in decoded.rows.columns:
        for index, is_valid in zip(decoded.kept.to_pylist(), column.is_valid().to_pylist(), strict=True):
            filled[index] += is_valid
    unexpected = _unexpected(decoded)
    present = [index for index in kept if values[index].is_valid and index not in unexpected]
    by_columns = sorted(present, key=lambda index: (-filled[index], sizes[index]))
    chosen = by_columns[: max(1, count - 1)]
    shortest = sorted((index for index in present if index not in chosen), key=lambda index: sizes[index])
    chosen += shortest[: count - len(chosen)]
    if sum(sizes[index] for index in chosen) > _LONG:
        chosen = chosen[:1]
    if with_tombstone:
        chosen += [index for index in kept if not values[index].is_valid][:1]
    return sorted(chosen)


def _unexpected(decoded: Decoded) -> set[int]:
    """Return the indexes of records that no test can expect: with values that the source left out, which are not in the
    target of a test, or with NaN, which is not equal to itself."""
    unchanged = decoded.unchanged
    if UNCHANGED_COLUMNS in decoded.rows.schema.names:
        unchanged = decoded.rows.column(UNCHANGED_COLUMNS)
    marks = [] if unchanged is None else [unchanged.is_valid().to_pylist()]
    for column in decoded.rows.columns:
        is_list = pa.types.is_list(column.type)
        if pa.types.is_floating(column.type.value_type if is_list else column.type):
            lists = column.to_pylist() if is_list else [[value] for value in column.to_pylist()]
            marks.append([any(value != value for value in each or ()) for each in lists])
    kept = decoded.kept.to_pylist()
    return {index for mark in marks for index, is_marked in zip(kept, mark, strict=True) if is_marked}

"""The targets of a batch, computed from its staged rows without Postgres."""

from collections.abc import Sequence
from typing import Protocol

from exactbatch.batch.rows.rejects import SHOWN_REJECTS, too_many_rejects
from exactbatch.batch.staging.uncastable import DELETED_IS_NULL, key_is_null
from exactbatch.columns import UNCHANGED_COLUMNS, Column
from exactbatch.pipeline import Pipeline
from exactbatch.sinks import Aggregate, Append, Sink, Upsert
from exactbatch.testing.aggregate import AggregateTarget
from exactbatch.testing.compared import needs_postgres
from exactbatch.testing.loaded import Loaded, Reject, Row
from exactbatch.testing.staged import Place, StagedRows
from exactbatch.testing.upsert import UpsertTarget


class Target(Protocol):
    """Computes one target from staged rows and the places of their records."""

    def refused(self, rows: Sequence[Row], places: Sequence[Place]) -> list[tuple[Place, str]]:
        """Return the records with rows that the target cannot have, with the reason."""
        ...

    def rows(self, rows: Sequence[Row], places: Sequence[Place]) -> list[Row]:
        """Return the rows of the target."""
        ...


class AppendTarget:
    """The target of an Append: all rows."""

    def refused(self, _rows: Sequence[Row], _places: Sequence[Place]) -> list[tuple[Place, str]]:
        """See Target: none."""
        return []

    def rows(self, rows: Sequence[Row], _places: Sequence[Place]) -> list[Row]:
        """See Target."""
        return list(rows)


def loaded_without_postgres(staged: StagedRows) -> Loaded:
    """Return what a batch makes of staged rows, as far as that is known without Postgres.

    Raises ConfigurationError if rejects depend on what only Postgres knows.
    """
    pipeline = staged.pipeline
    if pipeline.checks:
        raise needs_postgres(f"pipeline {pipeline.name!r} has checks, and Postgres alone can evaluate them")
    staged = staged.without(_without_key(staged))
    for part in pipeline.sink.parts:
        target = _target_of(part, staged.columns)
        staged = staged.without(target.refused(_rows_for(part, staged), staged.places()))
    unverified = {column.name: column.type for column in staged.columns if column.staged_type != column.type}
    return staged.loaded(unverified, lambda: _targets(staged))


def check_rejects(pipeline: Pipeline, rejects: Sequence[Reject], records: int) -> None:
    """Raise TooManyRejects if a batch with these rejects fails."""
    if len(rejects) <= pipeline.rejects_allowed(records):
        return
    raise too_many_rejects(
        pipeline,
        f"pipeline {pipeline.name!r}",
        batch_id=0,
        rejected=len(rejects),
        records=records,
        written=". A batch writes nothing then.",
        first=[
            f"{each.topic}[{each.partition}] offset {each.offset}: {each.reason}"
            for each in rejects[:SHOWN_REJECTS]
        ],
    )


def _without_key(staged: StagedRows) -> list[tuple[Place, str]]:
    """Return the records for which a transform gave a change without its key, or that is neither a delete nor none."""
    sink = staged.pipeline.sink
    if not (staged.pipeline.is_transformed and sink.keeps_deletes):
        return []
    refused = []
    for place, row in zip(staged.places(), staged.as_dicts(), strict=True):
        reasons = [key_is_null(name) for name in sink.key_columns if row[name] is None]
        if row["deleted"] is None:
            reasons.append(DELETED_IS_NULL)
        refused += [(place, reason) for reason in reasons[:1]]
    return refused


def _targets(staged: StagedRows) -> dict[str, list[Row]]:
    check_rejects(staged.pipeline, staged.rejects, staged.record_count)
    return {
        part.target: _target_of(part, staged.columns).rows(_rows_for(part, staged), staged.places())
        for part in staged.pipeline.sink.parts
    }


def _target_of(sink: Sink, columns: Sequence[Column]) -> Target:
    match sink:
        case Upsert():
            return UpsertTarget(sink, columns)
        case Aggregate():
            return AggregateTarget(sink, columns)
        case Append():
            return AppendTarget()
    raise needs_postgres(f"target {sink.target}: load() does not know the sink {type(sink).__name__}")


def _rows_for(sink: Sink, staged: StagedRows) -> list[Row]:
    """Return the rows as a sink stages them; those of an Aggregate have the time of their record as well."""
    if isinstance(sink, Aggregate):
        return staged.as_dicts("kafka_timestamp")
    rows = staged.as_dicts()
    if isinstance(sink, Append):  # next to an Upsert, it has deletes and no list of unchanged columns
        return [{name: value for name, value in row.items() if name != UNCHANGED_COLUMNS} for row in rows]
    return rows

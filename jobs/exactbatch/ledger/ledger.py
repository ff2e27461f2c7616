"""What the ledger knows, and what may be written into it, as typed calls inside a caller's transaction."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib import resources
from typing import Any, Final, Literal, cast
from uuid import UUID

import aiosql
from psycopg2 import sql

from exactbatch.coverage import Coverage
from exactbatch.errors import (
    BatchLost,
    ConfigurationError,
    ExactbatchError,
    NotRegistered,
    PostgresUnavailable,
    TargetMismatch,
)
from exactbatch.ledger.definition import (
    Definition,
    adds_topics,
    check_identity,
    check_sharing,
    check_topics,
    definition_of,
    sharing,
)
from exactbatch.model import Covered, LogPartition, Plan, StoredOffset
from exactbatch.offsets import OffsetRange, PartitionKey, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection

Origin = Literal["schedule", "manual", "backfill", "clear", "cli"]

_PARTITION: Final = ("topic", "topic_id", "partition")
_PLACE: Final = ("topic_id", "partition", "from_offset", "until_offset")
_STORED_OFFSET: Final = (*_PARTITION, "next_offset", "leader_epoch")
_RANGE: Final = (*_PARTITION, "from_offset", "until_offset", "leader_epoch")
_COVERED: Final = (*_PARTITION, "from_offset", "until_offset", "kind", "batch_id")

_queries = aiosql.from_str(
    (resources.files("exactbatch.ledger") / "queries.sql").read_text(encoding="utf-8"),
    "psycopg2",
    mandatory_parameters=False,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of exactbatch.batch. Counts are None until it is committed.

    `batch_id` is its number in this ledger. `plan_id` never comes again: a batch that was lost when the database
    went back in time had another one, although its number is issued again.
    """

    batch_id: int
    plan_id: UUID
    pipeline: str
    kind: Literal["advance", "replay"]
    origin: Origin
    dag_id: str | None
    run_id: str | None
    generation: int
    clear_number: int
    run_started_at: datetime | None
    status: Literal["planned", "committed", "superseded"]
    records: int | None
    rows: int | None
    rejected: int | None
    tombstones: int | None
    dropped: int | None
    planned_at: datetime
    committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """Which DAG run asks for a plan.

    `clear_number` counts how often the run was cleared, and `started_at` is when it began: it changes when a
    run that had ended is cleared, and when it is deleted and created again under the same id. An automatic
    retry leaves both as they are.
    """

    dag_id: str
    run_id: str
    clear_number: int = 0
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """A row of exactbatch.rejected_record, without what it holds; `bytes` is the length of its value."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    bytes: int | None
    reason: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class RejectReason:
    """How many records were rejected for one reason, and the first of them as topic[partition] offset."""

    reason: str
    records: int
    first: str


@dataclass(frozen=True, slots=True)
class RejectReasons:
    """The most frequent reasons for which records were rejected, and how many reasons and records there are."""

    shown: tuple[RejectReason, ...]
    reasons: int
    records: int


@dataclass(frozen=True, slots=True)
class PartlyCommitted:
    """A batch that is not committed, `committed` of whose `ranges` are; the counts are sums over these."""

    batch_id: int
    ranges: int
    committed: int
    records: int
    rows: int
    rejected: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class Failing:
    """A planned batch that fails, with the error of the last time.

    Of an advance `failures` and `since` include those that it superseded since an advance was committed last.
    """

    batch_id: int
    kind: Literal["advance", "replay"]
    failures: int
    since: datetime
    failed_at: datetime
    error: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class TimeOffset:
    """A row of exactbatch.time_boundary: the offset of a partition at which a time begins."""

    topic: str
    topic_id: UUID
    partition: int
    at: datetime
    offset: int
    resolved_at: datetime


@dataclass(frozen=True, slots=True)
class NearbyTimeOffsets:
    """The offset that a time is pinned to in a partition, and those of its nearest pinned neighbours in time.

    Each is None if there is none.
    """

    pinned: int | None
    before: int | None
    after: int | None

    def between(self, first: int) -> int:
        """Return the pinned offset or, without one, the offset `first`, moved in between the neighbours' offsets.

        Retention and late records can move a time's first offset: intervals would overlap.
        """
        if self.pinned is not None:
            return self.pinned
        offset = max(first, self.before or 0)
        return offset if self.after is None else min(offset, self.after)


class Ledger:
    """Reads and writes the ledger through one psycopg2 connection; the caller owns the transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def register(
        self,
        pipeline: Pipeline,
        *,
        accept_identity: bool = False,
        share_topics: bool = False,
        rename: str | None = None,
    ) -> bool:
        """Register a pipeline; return whether anything was written.

        `rename` is the name that the pipeline had before: all its rows get the new one.

        Raises IdentityChanged when it is registered with another identity, and ConfigurationError when another
        pipeline writes to its tables by other rules. With `accept_identity` it raises neither: pipelines that
        share a target are changed one after the other, and check_registered() lets none run until they agree.

        Raises ConfigurationError when another pipeline loads any of its topics into the same target, unless
        `share_topics` says that both may.
        """
        registered = self._definition(pipeline.name)
        renamed = rename is not None and self._rename(rename, pipeline.name, registered)
        if renamed:
            registered = self._definition(pipeline.name)
        shares = share_topics or (registered is not None and registered.shares_topics)
        own, others = definition_of(pipeline, shares_topics=shares), self._others(pipeline)
        if not accept_identity:
            if registered is not None:
                check_identity(own, registered)
            check_sharing(own, others)
        self._check_topics(own, others, adds=adds_topics(own, registered))
        if registered == own:
            return renamed
        _queries.register_pipeline(self._connection, **asdict(own))
        return True

    def _rename(self, old: str, new: str, registered: Definition | None) -> bool:
        """Give a pipeline its new name; return False where it has it already."""
        if old == new:
            raise ConfigurationError(
                f"pipeline {new!r} cannot be renamed to the name that it has. Give --rename the name that it had "
                f"before."
            )
        found = self._definition(old)
        if found is None and registered is not None:
            return False
        if found is None:
            raise NotRegistered(
                f"pipeline {old!r} is not in the ledger of database {self._connection.info.dbname!r}, which has "
                f"{self._names()}: it cannot be renamed to {new!r}. Check the name, and the connection string."
            )
        if registered is not None:
            raise ConfigurationError(
                f"pipelines {old!r} and {new!r} are both registered, so {old!r} cannot be renamed to {new!r}. "
                f"Choose a name that is free."
            )
        _queries.rename_pipeline(self._connection, old=old, new=new)
        return True

    def _definition(self, name: str) -> Definition | None:
        row = _queries.get_pipeline(self._connection, pipeline=name)
        return None if row is None else Definition(**row._asdict())

    def _names(self) -> str:
        rows = _queries.list_pipelines(self._connection)
        return ", ".join(row.name for row in rows) or "no pipeline at all"

    def _check_topics(self, own: Definition, others: Iterable[Definition], *, adds: bool) -> None:
        """With the topics that the others have ever loaded: what was taken out of them is in the target."""
        beside = sharing(own, others)
        if not beside or own.shares_topics:
            return
        loaded: dict[str, set[str]] = {other.name: set(other.topics) for other in beside}
        for row in _queries.stored_topics(self._connection, pipelines=list(loaded)):
            loaded[row.pipeline].add(row.topic)
        for other in beside:
            check_topics(own, replace(other, topics=sorted(loaded[other.name])), adds=adds)

    def check_registered(self, pipeline: Pipeline, *, may_double: bool = False) -> None:
        """Raise NotRegistered or IdentityChanged unless the pipeline is registered as it is now.

        Raises ConfigurationError when another pipeline writes to its tables by other rules, or loads the same
        topics into the same target and nobody has said that it may; with `may_double` it is not looked for.
        """
        row = _queries.get_pipeline(self._connection, pipeline=pipeline.name)
        self._check(pipeline, row, may_double=may_double)

    def sharing(self, pipeline: Pipeline) -> list[str]:
        """The names of the other pipelines that write to any of its tables."""
        return [other.name for other in sharing(definition_of(pipeline), self._others(pipeline))]

    def removed_topics(self, pipeline: Pipeline) -> list[str]:
        """Return topics that the pipeline has processed and no longer loads.

        Topics that another pipeline with the same tables has processed, at any time, are left out.
        """
        names = [pipeline.name, *self.sharing(pipeline)]
        stored = list(_queries.stored_topics(self._connection, pipelines=names))
        own = {row.topic for row in stored if row.pipeline == pipeline.name}
        others = {row.topic for row in stored if row.pipeline != pipeline.name}
        return sorted(own - others - set(pipeline.topics))

    def _others(self, pipeline: Pipeline) -> list[Definition]:
        rows = _queries.other_pipelines(self._connection, pipeline=pipeline.name)
        return [Definition(**row._asdict()) for row in rows]

    def lock(self, pipeline: Pipeline) -> None:
        """Take the pipeline's lock, and check as check_registered() does."""
        self._check(pipeline, _queries.lock_pipeline(self._connection, pipeline=pipeline.name))

    def stored_offsets(self, pipeline: Pipeline) -> tuple[StoredOffset, ...]:
        """Where the pipeline stands in each partition."""
        return tuple(
            StoredOffset(
                topic=row.topic,
                partition=row.partition,
                next_offset=row.next_offset,
                leader_epoch=row.leader_epoch,
                topic_id=row.topic_id,
            )
            for row in _queries.stored_offsets(self._connection, pipeline=pipeline.name)
        )

    def stored_at(self, pipeline: Pipeline) -> dict[tuple[str, int], datetime]:
        """When the stored offset of each (topic, partition) last moved."""
        rows = _queries.stored_offsets(self._connection, pipeline=pipeline.name)
        return {(row.topic, row.partition): row.updated_at for row in rows}

    def hold_planned_advance(self, pipeline: Pipeline) -> None:
        """Let no range of the planned advance commit from now on, after waiting for those about to.

        Stored offsets that are read afterwards stay as they are until this transaction ends.
        """
        list(_queries.hold_planned_advance(self._connection, pipeline=pipeline.name))

    def write_advance(self, pipeline: Pipeline, plan: Plan, *, origin: Origin, run: Run | None) -> int | None:
        """Write a plan: seeds, losses and, unless it is empty, a batch that supersedes an older planned one.

        Returns the batch_id, or None for an empty plan.
        """
        if plan.seeds:
            _queries.insert_stored_offsets(
                self._connection, pipeline=pipeline.name, **_columns(plan.seeds, *_STORED_OFFSET)
            )
        if plan.losses:
            _queries.record_losses(self._connection, pipeline=pipeline.name, **_columns(plan.losses, *_RANGE))
        if plan.is_empty:
            return None
        list(_queries.supersede_planned_advance(self._connection, pipeline=pipeline.name))
        return self._write_batch(pipeline, "advance", plan.ranges, origin=origin, run=run)

    def write_replay(
        self, pipeline: Pipeline, ranges: Sequence[OffsetRange], *, origin: Origin, run: Run | None
    ) -> int:
        """Write a batch that processes these ranges again; return its batch_id."""
        return self._write_batch(pipeline, "replay", ranges, origin=origin, run=run)

    def _write_batch(
        self,
        pipeline: Pipeline,
        kind: Literal["advance", "replay"],
        ranges: Sequence[OffsetRange],
        *,
        origin: Origin,
        run: Run | None,
    ) -> int:
        if run is not None:
            list(
                _queries.supersede_run(
                    self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
                )
            )
        batch_id = _queries.insert_batch(
            self._connection,
            pipeline=pipeline.name,
            kind=kind,
            origin=origin,
            dag_id=run and run.dag_id,
            run_id=run and run.run_id,
            clear_number=run.clear_number if run else 0,
            run_started_at=run and run.started_at,
        )
        _queries.insert_batch_ranges(self._connection, batch_id=batch_id, **_columns(ranges, *_RANGE))
        return int(batch_id)

    def batches_of_run(self, pipeline: Pipeline, run: Run) -> list[Batch]:
        """All batches that were planned for a run of this id, of all its incarnations, newest first."""
        rows = _queries.batches_of_run(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )
        return [Batch(**row._asdict()) for row in rows]

    def begin_incarnation(self, pipeline: Pipeline, run: Run) -> None:
        """Record that the run was created under the id of a deleted one, whose batches are not its own."""
        _queries.begin_incarnation(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )

    def batches_of_incarnation(self, pipeline: Pipeline, run: Run) -> list[Batch]:
        """Return those of batches_of_run() that were planned since the run was created, if that is known."""
        began = _queries.incarnation_of_run(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )
        return [each for each in self.batches_of_run(pipeline, run) if each.generation >= began]

    def batch_of_run(self, pipeline: Pipeline, run: Run) -> int | None:
        """The batch that was planned for this run as it is now, if there is one."""
        for each in self.batches_of_run(pipeline, run):
            if (each.clear_number, each.run_started_at) == (run.clear_number, run.started_at):
                return each.batch_id
        return None

    def batch(self, batch_id: int, plan_id: UUID | None = None, *, lock: bool = False) -> Batch:
        """One batch; with `lock`, held until the transaction ends (after the pipeline's lock, always).

        With `plan_id` it must be the batch of this plan. Raises BatchLost when it is not, or when there
        is none, and PostgresUnavailable when the server is a standby, which may not
        have received it yet.
        """
        query = _queries.lock_batch if lock else _queries.get_batch
        row = query(self._connection, batch_id=batch_id)
        if row is None or plan_id not in (None, row.plan_id):
            self._check_primary(batch_id)
            database = self._connection.info.dbname
            if plan_id is not None:
                raise batch_lost(batch_id, plan_id, row and row.plan_id, database)
            raise BatchLost(
                f"batch {batch_id} is not in the ledger of database {database!r}. Check the number and the "
                f"connection string. If the database was restored or failed over since the batch was planned, the "
                f"next run plans from the stored offsets.",
                batch_id=batch_id,
            )
        return Batch(**row._asdict())

    def _check_primary(self, batch_id: int) -> None:
        if _queries.is_standby(self._connection):
            raise PostgresUnavailable(
                f"batch {batch_id} is not in the ledger of {self._connection.info.host}, which is a standby: it "
                f"may not have received the batch yet. Let the connection string name the primary "
                f"(target_session_attrs=read-write).",
                batch_id=batch_id,
            )

    def batches(self, pipeline: Pipeline, *, limit: int) -> list[Batch]:
        """The newest batches, newest first."""
        rows = _queries.list_batches(self._connection, pipeline=pipeline.name, limit=limit)
        return [Batch(**row._asdict()) for row in rows]

    def unfinished_replays(self, pipeline: Pipeline, *, age: float, limit: int) -> list[Batch]:
        """The newest replays that have not committed `age` seconds after they were planned, newest first."""
        rows = _queries.unfinished_replays(self._connection, pipeline=pipeline.name, age=age, limit=limit)
        return [Batch(**row._asdict()) for row in rows]

    def unannounced(self, pipeline: Pipeline, *, age: float, limit: int) -> list[Batch]:
        """The oldest batches of DAG runs whose results no asset event has told of, oldest first.

        They have had them for `age` seconds, so that no report of their own is likely to be under way. Beside
        committed ones, these are superseded ones some of whose ranges were committed (commit="partition").
        """
        rows = _queries.unannounced(self._connection, pipeline=pipeline.name, age=age, limit=limit)
        return [Batch(**row._asdict()) for row in rows]

    def batches_of_plans(self, pipeline: Pipeline, plan_ids: Iterable[UUID]) -> list[Batch]:
        """The batches of these plans that are committed or superseded, oldest first."""
        rows = _queries.batches_of_plans(
            self._connection, pipeline=pipeline.name, plan_ids=list(map(str, plan_ids))
        )
        return [Batch(**row._asdict()) for row in rows]

    def announce(self, plan_ids: Iterable[UUID]) -> None:
        """An asset event tells of the batches of these plans."""
        _queries.announce(self._connection, plan_ids=list(map(str, plan_ids)))

    def overtaken_by(self, batch: Batch) -> int | None:
        """The newest of the later batches whose results stand for all offsets of a replay that has not committed.

        None where some of its offsets are left to process again, and for any other batch.
        """
        if batch.kind != "replay" or batch.status == "committed":
            return None
        covered = [each for each in self.covering(batch) if (each.batch_id or 0) > batch.batch_id]
        done = sum(each.until_offset - each.from_offset for each in covered)
        if not covered or done < sum(map(len, self.ranges(batch.batch_id))):
            return None
        return max(each.batch_id for each in covered if each.batch_id is not None)

    def supersede_overtaken(self, batch: Batch) -> None:
        """Mark a replay that later ones have overtaken: it can not commit any more."""
        _queries.supersede_overtaken(self._connection, batch_id=batch.batch_id)

    def ranges(self, batch_id: int) -> tuple[OffsetRange, ...]:
        """The ranges of a batch, by topic, partition and offset."""
        rows = _queries.batch_ranges(self._connection, batch_id=batch_id)
        return tuple(OffsetRange(**row._asdict()) for row in rows)

    def ranges_with_records(self, batch_id: int) -> list[tuple[OffsetRange, int | None]]:
        """The ranges of a batch, each with how many records were read from it (None before the commit)."""
        rows = _queries.batch_ranges_with_records(self._connection, batch_id=batch_id)
        return [(OffsetRange(*row[:-1]), row.records) for row in rows]

    def committed_ranges(self, batch_id: int) -> tuple[OffsetRange, ...]:
        """The ranges of a batch that are committed: all or none, or some with commit="partition"."""
        rows = _queries.committed_ranges(self._connection, batch_id=batch_id)
        return tuple(OffsetRange(**row._asdict()) for row in rows)

    def uncommitted_ranges(self, batch_id: int) -> tuple[OffsetRange, ...]:
        """The ranges of a batch that are left to commit."""
        committed = set(self.committed_ranges(batch_id))
        return tuple(each for each in self.ranges(batch_id) if each not in committed)

    def partly_committed(self, pipeline: Pipeline, batches: Sequence[Batch]) -> tuple[PartlyCommitted, ...]:
        """Those of the batches that are not committed, although some of their ranges are."""
        ids = [each.batch_id for each in batches]
        rows = _queries.partly_committed(self._connection, pipeline=pipeline.name, batch_ids=ids)
        return tuple(PartlyCommitted(**row._asdict()) for row in rows)

    def note_failure(self, batch: Batch, error: Exception) -> None:
        """The processing of a batch has failed."""
        _queries.note_failure(
            self._connection,
            batch_id=batch.batch_id,
            plan_id=batch.plan_id,
            error=type(error).__name__,
            message=str(error).replace("\0", "\\0"),
            retryable=not isinstance(error, ExactbatchError) or error.retryable,
        )

    def failing(self, pipeline: Pipeline, batches: Sequence[Batch]) -> tuple[Failing, ...]:
        """The planned advance, if it fails, and those of the batches that are replays that fail."""
        ids = [each.batch_id for each in batches]
        rows = _queries.failures(self._connection, pipeline=pipeline.name, batch_ids=ids)
        return tuple(Failing(**row._asdict()) for row in rows)

    def coverage(self, pipeline: Pipeline) -> list[Covered]:
        """What the pipeline accounts for, by topic, partition and offset."""
        rows = _queries.coverage(self._connection, pipeline=pipeline.name)
        return [Covered(**row._asdict()) for row in rows]

    def successor(self, batch: Batch) -> int | None:
        """The newest batch that took this one's place."""
        return cast("int | None", _queries.successor_of_batch(self._connection, batch_id=batch.batch_id))

    def advance_stored_offsets(self, batch: Batch) -> set[tuple[str, int]]:
        """Move the stored offsets over the batch's ranges; return the partitions that stood where planned."""
        rows = _queries.advance_stored_offsets(
            self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id
        )
        return {(row.topic, row.partition) for row in rows}

    def cover(self, batch: Batch) -> None:
        """Let the batch's results stand for its ranges."""
        _queries.cover_batch(self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id)

    def covering(self, batch: Batch) -> list[Covered]:
        """What accounts for the offsets of the batch's ranges now, each cut to a range."""
        return self.covering_ranges(batch.pipeline, self.ranges(batch.batch_id))

    def covering_ranges(self, pipeline: str, ranges: Sequence[OffsetRange]) -> list[Covered]:
        """What accounts for the offsets of ranges now, each cut to a range."""
        rows = _queries.covering(self._connection, pipeline=pipeline, **_columns(ranges, *_PLACE))
        found = Coverage(Covered(**row._asdict()) for row in rows)
        return [piece for range_ in ranges for piece in found.cut(range_)]

    def uncover(self, batch: Batch) -> None:
        """Take the batch's ranges out of the coverage; other batches keep their other offsets."""
        rows = list(_queries.uncover(self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id))
        # Put back only now: the database checks at once that no offset is covered twice.
        rest = Coverage(Covered(**row._asdict()) for row in rows).without(self.ranges(batch.batch_id))
        _queries.cover_rest(self._connection, pipeline=batch.pipeline, **_columns(rest, *_COVERED))

    def has_results(self, pipeline: Pipeline) -> bool:
        """Whether any batch has committed results that still count."""
        return bool(_queries.has_results(self._connection, pipeline=pipeline.name))

    def rejects(self, pipeline: Pipeline, *, limit: int | None = None) -> list[Reject]:
        """Rejected records in the order of the log, the first `limit` of them or all."""
        rows = _queries.rejects(self._connection, pipeline=pipeline.name, limit=limit)
        return [Reject(**row._asdict()) for row in rows]

    def rejects_by_reason(self, pipeline: Pipeline, *, limit: int) -> RejectReasons:
        """The reasons for which records were rejected, the most frequent first: a reason may tell the value, and
        there may be as many as records."""
        rows = list(_queries.rejects_by_reason(self._connection, pipeline=pipeline.name, limit=limit))
        return RejectReasons(
            tuple(RejectReason(row.reason, row.records, row.first) for row in rows),
            reasons=rows[0].reasons if rows else 0,
            records=rows[0].all_records if rows else 0,
        )

    def insert_rejects(self, batch: Batch, rejects: sql.Composable, attempts: Sequence[int]) -> int:
        """Keep the rejects that task attempts have put into the staging table `rejects`; return how many."""
        query = sql.SQL(_queries.insert_rejects.sql).format(rejects=rejects)
        with self._connection.cursor() as cursor:
            cursor.execute(
                query, {"pipeline": batch.pipeline, "batch_id": batch.batch_id, "attempts": list(attempts)}
            )
            return int(cursor.rowcount)

    def staged_records(
        self,
        batch_id: int,
        *,
        rows: sql.Composable,
        rejects: sql.Composable,
        attempts: Sequence[int],
        notes: Sequence[int],
    ) -> tuple[int, str | None]:
        """Return how many records the rows of task attempts in the staging table `rows`, and their notes in
        `rejects`, come from, and one of them that is in no range of the batch."""
        query = sql.SQL(_queries.staged_records.sql).format(rows=rows, rejects=rejects)
        with self._connection.cursor() as cursor:
            cursor.execute(query, {"batch_id": batch_id, "attempts": list(attempts), "notes": list(notes)})
            row = cursor.fetchone()
            return int(row.records), row.foreign_record

    def delete_rejects(self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> None:
        """Delete the rejects of batches in ranges."""
        _queries.delete_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))

    def count_rejects(
        self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]
    ) -> list[int]:
        """How many rejects delete_rejects() would delete in each range."""
        rows = _queries.count_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))
        counted = {row.number: row.rejects for row in rows}
        return [counted.get(number, 0) for number in range(1, len(parts) + 1)]

    def still_covering(self, pipeline: Pipeline, batch_ids: Sequence[int]) -> list[int]:
        """Those of the batches that account for any offset."""
        rows = _queries.still_covering(self._connection, pipeline=pipeline.name, batch_ids=list(batch_ids))
        return [row.batch_id for row in rows]

    def nearby_time_offsets(
        self, pipeline: Pipeline, partitions: Sequence[LogPartition], at: datetime
    ) -> dict[TopicPartition, NearbyTimeOffsets]:
        """Return the offset that a time is pinned to in each partition, and those of the times around it."""
        rows = _queries.nearby_time_offsets(
            self._connection, pipeline=pipeline.name, at=at, **_columns(partitions, *_PARTITION)
        )
        return {
            (row.topic, row.partition): NearbyTimeOffsets(row.pinned, row.before, row.after) for row in rows
        }

    def pin_time_offsets(self, pipeline: Pipeline, at: datetime, offsets: Mapping[LogPartition, int]) -> None:
        """Pin a time to these offsets from now on."""
        _queries.insert_time_offsets(
            self._connection,
            pipeline=pipeline.name,
            at=at,
            offset=list(offsets.values()),
            **_columns(list(offsets), *_PARTITION),
        )

    def time_offsets(
        self, pipeline: Pipeline, *, at: Sequence[datetime] | None = None, limit: int
    ) -> list[TimeOffset]:
        """Return the pinned times, all or those in `at`, the latest first."""
        times = None if at is None else list(at)
        rows = _queries.time_offsets(self._connection, pipeline=pipeline.name, at=times, limit=limit)
        return [TimeOffset(**row._asdict()) for row in rows]

    def forget_time_offsets(self, pipeline: Pipeline, from_time: datetime, to_time: datetime) -> int:
        """Unpin the times from one to another, both included; return how many there were."""
        return int(
            _queries.forget_time_offsets(
                self._connection, pipeline=pipeline.name, from_time=from_time, to_time=to_time
            )
        )

    def first_advanced(self, pipeline: Pipeline) -> dict[tuple[UUID, int], int]:
        """Where the pipeline began, by topic id and partition; below that lies history."""
        rows = _queries.first_advanced(self._connection, pipeline=pipeline.name)
        return {(row.topic_id, row.partition): row.from_offset for row in rows}

    def horizons(self, pipeline: Pipeline) -> dict[PartitionKey, int]:
        """The offset of each log below which nothing can be replayed any more."""
        rows = _queries.horizons(self._connection, pipeline=pipeline.name)
        return {(row.topic, row.partition, row.topic_id): row.offset for row in rows}

    def raise_horizon(self, pipeline: Pipeline, below: OffsetRange) -> None:
        """Let nothing below the end of a range be replayed any more; a horizon never moves back."""
        _queries.raise_horizon(
            self._connection,
            pipeline=pipeline.name,
            topic=below.topic,
            topic_id=below.topic_id,
            partition=below.partition,
            offset=below.until_offset,
        )

    def commit(
        self,
        batch: Batch,
        *,
        rows: int,
        rejected: int,
        tombstones: int,
        dropped: int = 0,
        records: Iterable[tuple[OffsetRange, int]],
    ) -> None:
        """Mark the batch committed, with the numbers of records that were read from its ranges."""
        counts = list(records)
        _queries.count_ranges(
            self._connection,
            batch_id=batch.batch_id,
            records=[count for _, count in counts],
            **_columns([range_ for range_, _ in counts], "topic", "partition", "from_offset"),
        )
        committed = _queries.commit_batch(
            self._connection,
            batch_id=batch.batch_id,
            records=sum(count for _, count in counts),
            rows=rows,
            rejected=rejected,
            tombstones=tombstones,
            dropped=dropped,
        )
        if committed != 1:
            raise TargetMismatch(
                f"batch {batch.batch_id}: exactbatch.batch did not take the commit: a trigger, a rule or a "
                f"policy of the ledger's tables keeps it back. Nothing was written. Drop it.",
                batch_id=batch.batch_id,
            )

    def commit_ranges(self, batch: Batch) -> None:
        """Mark a batch committed, each of whose ranges is, with the sums of their counts."""
        _queries.commit_ranges(self._connection, batch_id=batch.batch_id)

    def try_lock_launch(self, launch: int) -> bool:
        """Hold a launch until this transaction ends, unless another one that is open does."""
        return bool(_queries.try_lock_launch(self._connection, launch=launch))

    def staging_tables(self) -> Sequence[str]:
        """The names of all staging tables there are, of every launch."""
        return [row.relname for row in _queries.staging_tables(self._connection)]

    def _check(self, pipeline: Pipeline, registered: Any, *, may_double: bool = False) -> None:
        own, others = definition_of(pipeline), self._others(pipeline)
        if registered is None:
            raise NotRegistered(
                f"expected the pipeline {pipeline.name!r} in the ledger of database "
                f"{self._connection.info.dbname!r}, found {self._names()}. {_renamed(own, others)} this is "
                f"the right database, run `exactbatch init` for it once."
            )
        found = Definition(**registered._asdict())
        check_identity(own, found)
        check_sharing(own, others)
        if not may_double:
            own = replace(own, shares_topics=found.shares_topics)
            self._check_topics(own, others, adds=False)


def _renamed(own: Definition, others: Iterable[Definition]) -> str:
    """Which pipelines are registered with the target of one that is not, and the beginning of what else to do."""
    names = [other.name for other in others if other.table == own.table]
    if not names:
        return "If"
    return (
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} registered with the same target, "
        f"{own.target}. If {own.name!r} is {names[0]!r} under a new name, run `exactbatch init` for {own.name!r} "
        f"with `--rename {names[0]}`, and it goes on where {names[0]!r} stands. If it is a new one, and"
    )


def batch_lost(batch_id: int, plan_id: UUID, found: UUID | None, database: str) -> BatchLost:
    """The error over a batch that a database's ledger does not have; `found` is the plan that has its number."""
    other = f", where its number belongs to plan {found}" if found else ""
    return BatchLost(
        f"batch {batch_id} (plan {plan_id}) is not in the ledger of database {database!r}{other}: the database "
        f"was restored, or failed over to a replica that had not received the batch. Its results and offsets went "
        f"back together; nothing is half done. Clear plan_batch, or wait for the next scheduled run: it plans "
        f"from the stored offsets.",
        batch_id=batch_id,
    )


def _columns(rows: Sequence[Any], *names: str) -> dict[str, list[Any]]:
    """The fields of some rows as lists, for one statement over all of them."""
    return {name: [getattr(row, name) for row in rows] for name in names}


def _parts(parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> dict[str, list[Any]]:
    """Ranges, and the batches whose results stand for some of their offsets."""
    return {
        **_columns([range_ for range_, _ in parts], *_PLACE),
        "batch_ids": sorted({batch_id for _, batch_ids in parts for batch_id in batch_ids}),
    }

"""A target for audits: batches are committed by plain SQL, and rows can be spoiled."""

import time
from collections.abc import Sequence
from typing import Any

from exactbatch import Pipeline
from exactbatch.audit import run_audit
from exactbatch.audit.audit_result import AuditReport
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.topics import Topic

# Only a superuser can do it: without this, the ledger refuses to change its past.
FORGE = "set local session_replication_role = replica;"
# What is found besides where one batch has another number of rows than when it was committed.
COUNT: dict[str, tuple[int, list[int]]] = {"miscounted": (1, [])}


class AuditedTarget:
    """A pipeline, its target, and hands that can spoil both."""

    def __init__(self, connection: Any, settings: Settings, pipeline: Pipeline) -> None:
        self.connection, self.settings, self.pipeline = connection, settings, pipeline
        self.table = find_writer(pipeline.traits).tables[-1].identifier.as_string(connection)

    def execute(self, statement: str, *arguments: Any) -> int:
        """Run a statement in which {t} is the target; return how many rows it touched."""
        with transaction(self.connection) as cursor:
            cursor.execute(statement.replace("{t}", self.table), arguments)
            return int(cursor.rowcount)

    def load(
        self,
        *holes: int,
        tombstones: tuple[int, ...] = (),
        rejects: tuple[int, ...] = (),
        only: Sequence[int] | None = None,
    ) -> int:
        """Commit an advance by plain SQL: a row for each offset but these, or for `only` these; the batch_id."""
        batch_id = freeze_advance(
            self.connection, KafkaBroker(self.settings.kafka), self.pipeline, origin="cli"
        )
        assert batch_id is not None
        with transaction(self.connection) as cursor:
            find_writer(self.pipeline.traits).prepare(cursor, self.pipeline.value.columns)
            ledger = Ledger(self.connection)
            batch = ledger.batches.read(batch_id)
            ranges = ledger.batches.read_ranges(batch_id)
            assert ledger.plans.advance_stored_offsets(batch)
            ledger.coverage.add(batch)
            cursor.execute(
                f"insert into {self.table} select mod(o, 1000000), 'x', r.topic, r.partition, o, null, r.batch_id "
                "from exactbatch.batch_range r, unnest(coalesce(%s::bigint[], array("
                "select generate_series(from_offset, until_offset - 1)))) o "
                "where batch_id = %s and not o = any(%s)",
                (only, batch_id, [*holes, *tombstones, *rejects]),
            )
            rows = cursor.rowcount
            for offset in rejects:
                self._reject(cursor, offset, batch_id)
            records = rows + len(tombstones) + len(rejects)
            ledger.batches.mark_committed(
                batch,
                rows=rows,
                rejected=len(rejects),
                tombstones=len(tombstones),
                # How many of them each range has is looked at nowhere.
                records=[(range_, records if range_ == ranges[0] else 0) for range_ in ranges],
            )
        return batch_id

    def reject(self, offset: int, batch_id: int) -> None:
        """Write a reject."""
        with transaction(self.connection) as cursor:
            self._reject(cursor, offset, batch_id)

    def _reject(self, cursor: Any, offset: int, batch_id: int) -> None:
        cursor.execute(
            "insert into exactbatch.rejected_record "
            "select b.pipeline, r.topic_id, r.partition, %s, r.topic, null, null, '[]', 'bad', b.batch_id "
            "from exactbatch.batch b join exactbatch.batch_range r using (batch_id) where batch_id = %s",
            (offset, batch_id),
        )

    def audit(self) -> AuditReport:
        """Compare log and target."""
        return run_audit.audit(self.pipeline, self.settings)


def findings(found: AuditReport) -> dict[str, tuple[int, list[int]]]:
    """Return the findings by kind: the number of offsets, and the first of them."""
    first = {
        kind: finding.first for partition in found.partitions for kind, finding in partition.findings.items()
    }
    wrong = {kind: (count, first.get(kind, [])) for kind, count in found.findings.items() if count}
    assert found.is_exact == (not wrong)
    return wrong


def settle(log: KafkaBroker, topic: Topic, offset: int) -> None:
    """Wait until the broker has written the markers of all transactions."""
    deadline = time.monotonic() + 30
    while (found := log.partitions([topic.name])[0].last_stable) < offset:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)

"""When a window is final, and what comes too late for it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.cast import Misfit
from exactbatch.sinks.target import TargetTable
from exactbatch.sinks.watermark import Watermark
from exactbatch.sinks.window import Window

FINAL: Final = Column("final", "boolean")
REVISIONS: Final = Column("revisions", "bigint")
# How the reason of such a reject begins: a replay rejects it again.
_LATE: Final = "late: "


@dataclass(frozen=True)
class Finality:
    """A window is final once the watermark is at or past its end by `wait`."""

    window: Window
    wait: timedelta
    watermark: Watermark

    @property
    def is_final(self) -> sql.Composable:
        """Whether the window of a row of the target is final now."""
        return self._is_final(sql.Identifier(self.window.start.name), self.watermark.reached)

    @property
    def was_final(self) -> sql.Composable:
        """Whether the window of a row of the target was final before the transaction."""
        return self._is_final(sql.Identifier(self.window.start.name), self.watermark.before)

    def prepare(self, cursor: Cursor, target: TargetTable) -> None:
        """Let windows that are not final be found fast in a new target."""
        cursor.execute(
            sql.SQL("create index on {} ({}) where not final").format(
                target.identifier, sql.Identifier(self.window.start.name)
            )
        )

    def check_target(self, cursor: Cursor, target: TargetTable) -> None:
        """Raise TargetMismatch when a target that is there lacks the columns, or could hold null in them."""
        if not target.exists(cursor):
            return
        cursor.execute(
            "select count(*) from pg_attribute where attrelid = %s::regclass and attnotnull "
            "and attname in (%s, %s)",
            (target.identifier.as_string(cursor), FINAL.name, REVISIONS.name),
        )
        if cursor.fetchone()[0] < 2:
            raise TargetMismatch(
                f"target {target.written}: expected columns final and revisions that are never null, since the "
                f"pipeline has final_after, found otherwise. Add them: alter table {target.written} add column "
                f"final boolean not null default false, add column revisions bigint not null default 0;"
            )

    def mark(self, cursor: Cursor, target: TargetTable) -> None:
        """Let `final` follow the watermark, which goes back where a replay or a new partition brings it back."""
        parts = {"target": target.identifier, "is_final": self.is_final}
        target.execute(
            cursor, sql.SQL("update {target} set final = true where not final and {is_final}").format(**parts)
        )
        if self.watermark.went_back(cursor):
            target.execute(
                cursor,
                sql.SQL("update {target} set final = false where final and not {is_final}").format(**parts),
            )

    def late(self, batch_id: int) -> Misfit:
        """Which staged rows of a batch come too late, as a condition, and the reason.

        In a replay these are the records that were rejected as late before, and no others: what they had
        given is taken back, and with it the watermark they came too late for.
        """
        parts = {
            "fits": self.window.fits,
            "is_final": self._is_final(self.window.of_row, self.watermark.reached),
            "start": self.window.of_row,
            "length": sql.Literal(self.window.length),
            "reached": self.watermark.reached,
            "late": sql.Literal(_LATE),
            "advances": sql.SQL(
                "(select b.kind from exactbatch.batch b where b.batch_id = {}) = 'advance'"
            ).format(sql.Literal(batch_id)),
            "before": sql.SQL(
                "(select r.reason from exactbatch.rejected_record r "
                "join exactbatch.batch b on b.pipeline = r.pipeline "
                "where b.batch_id = {} and r.topic = kafka_topic and r.partition = kafka_partition "
                'and r."offset" = kafka_offset and starts_with(r.reason, {}) '
                "and exists (select from exactbatch.batch_range g where g.batch_id = b.batch_id "
                "and g.topic = r.topic and g.topic_id = r.topic_id))"
            ).format(sql.Literal(batch_id), sql.Literal(_LATE)),
        }
        condition = sql.SQL(
            "case when not {fits} then false when {advances} then {is_final} else {before} is not null end"
        )
        reason = sql.SQL(
            "case when {advances} then {late} || 'expected an event of a window that is not final, found one of ' "
            "|| ({start} at time zone 'UTC') || ' to ' || (({start} + {length}) at time zone 'UTC') "
            "|| ' UTC, which was final when the watermark stood at ' || ({reached} at time zone 'UTC') || ' UTC' "
            "else {before} end"
        )
        return Misfit(condition.format(**parts), reason.format(**parts))

    def _is_final(self, start: sql.Composable, watermark: sql.Composable) -> sql.Composable:
        return sql.SQL("coalesce({} <= {} - {}, false)").format(
            start, watermark, sql.Literal(self.window.length + self.wait)
        )

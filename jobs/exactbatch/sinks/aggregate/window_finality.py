"""Mark the windows of an Aggregate that are final, and find rows that come too late for them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.aggregate.spec import FINAL, REVISIONS
from exactbatch.sinks.aggregate.watermark import Watermark
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.aggregate.window_sql import find_start, fits
from exactbatch.sinks.ledger_conditions import earlier_reason, is_advance
from exactbatch.sinks.tables.counted_writes import write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule

# The reason of a late reject starts with this: a replay rejects the record again.
_LATE: Final = "late: "


@dataclass(frozen=True)
class WindowFinality:
    """A window is final once the watermark is at least `wait` past its end."""

    window: Window
    wait: timedelta
    watermark: Watermark

    @property
    def is_final(self) -> sql.Composable:
        """The condition that the window of a row of the target is final now."""
        return self._is_final(sql.Identifier(self.window.start.name), self.watermark.reached)

    @property
    def was_final(self) -> sql.Composable:
        """The condition that the window of a row of the target was final before the transaction."""
        return self._is_final(sql.Identifier(self.window.start.name), self.watermark.before)

    def create_index(self, cursor: Cursor, target: TargetTable) -> None:
        """Create the index of a new target by which windows that are not final are found."""
        create_named(
            cursor,
            sql.SQL("create index on {} ({}) where not final").format(
                target.identifier, sql.Identifier(self.window.start.name)
            ),
        )

    def check_target(self, cursor: Cursor, target: TargetTable) -> None:
        """Raise TargetMismatch if an existing target lacks the columns, or could hold null in them."""
        if not target.exists(cursor):
            return
        cursor.execute(
            "select count(*) from pg_attribute where attrelid = %s::regclass and attnotnull "
            "and attname in (%s, %s)",
            (target.identifier.as_string(cursor), FINAL.name, REVISIONS.name),
        )
        if cursor.fetchone()[0] < 2:
            raise TargetMismatch(
                f"target {target.spec}: the columns final and revisions are missing or may be null, and the "
                f"pipeline has allowed_lateness. Add them: alter table {target.spec} add column "
                f"final boolean not null default false, add column revisions bigint not null default 0;"
            )

    def update_final(self, cursor: Cursor, target: TargetTable) -> None:
        """Let `final` follow the watermark, which moves back if a replay or a new partition lowers it."""
        parts = {"target": target.identifier, "is_final": self.is_final}
        write_rows(
            cursor,
            target,
            sql.SQL("update {target} set final = true where not final and {is_final}").format(**parts),
        )
        if self.watermark.moved_back(cursor):
            write_rows(
                cursor,
                target,
                sql.SQL("update {target} set final = false where final and not {is_final}").format(**parts),
            )

    def late_rule(self, batch_id: int) -> RejectRule:
        """Return the rule that rejects staged rows of a batch that come too late.

        In a replay, exactly the records that were rejected as late before are late again. Everything else of the
        replayed ranges is retracted, and with it the watermark for which these came too late.
        """
        parts = {
            "fits": fits(self.window),
            "is_final": self._is_final(find_start(self.window), self.watermark.reached),
            "start": find_start(self.window),
            "length": sql.Literal(self.window.length),
            "reached": self.watermark.reached,
            "late": sql.Literal(_LATE),
            "advances": is_advance(batch_id),
            "before": earlier_reason(batch_id, _LATE),
        }
        condition = sql.SQL(
            "case when not {fits} then false when {advances} then {is_final} else {before} is not null end"
        )
        reason = sql.SQL(
            "case when {advances} then {late} || 'the window ' "
            "|| ({start} at time zone 'UTC') || ' to ' || (({start} + {length}) at time zone 'UTC') "
            "|| ' UTC was already final: the watermark stood at ' || ({reached} at time zone 'UTC') || ' UTC' "
            "else {before} end"
        )
        return RejectRule(condition.format(**parts), reason.format(**parts))

    def _is_final(self, start: sql.Composable, watermark: sql.Composable) -> sql.Composable:
        return sql.SQL("coalesce({} <= {} - {}, false)").format(
            start, watermark, sql.Literal(self.window.length + self.wait)
        )

"""Unavailable values, which the source did not send with a change: the row keeps what an older change gave it.

A change names the columns that were left out of it, and has null there. Such a column gets the value that the newest
older change of the key has for it. Which one that is follows from the changes alone, so that the order in which
they arrive does not matter: an older change that arrives later, or that a replay writes or retracts, changes the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.ledger_conditions import is_replaced_by
from exactbatch.sinks.sink import UNAVAILABLE
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import BY_TRUNCATE
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.upsert.change_order import STAGED, is_greater, latest_first
from exactbatch.sinks.upsert.truncates import Truncates, is_truncate
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

_UNAVAILABLE: Final = sql.Identifier(UNAVAILABLE.name)
# A key lives from one delete to the next; an epoch of all keys ends with a truncate.
_LIFE: Final = sql.Identifier("exactbatch life")
_EPOCH: Final = sql.Identifier("exactbatch epoch")
_PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")


@dataclass(frozen=True)
class UnavailableValues:
    """The changes of an Upsert; some have unavailable values."""

    changes: LineageTable
    key: Sequence[str]
    version: Sequence[str]

    def find_unavailable(
        self,
        cursor: Cursor,
        staged: StagedRows,
        columns: Sequence[Column],
        *,
        without: sql.Composable,
        truncates: Truncates,
    ) -> sql.Composable | None:
        """Return a query (task_attempt, topic, partition, offset, reason) for staged changes with an unavailable value
        that no older change of their key has; None if there are none.

        A delete ends the search, and so does a truncate: what came before it was another row. `without` is a query
        (topic, partition, offset) for staged changes that will not be inserted. What the batch is about to replace does
        not count.
        """
        cursor.execute(
            sql.SQL(
                "select distinct unnest({unavailable}) from {staging} where {accepted} and not deleted order by 1"
            ).format(unavailable=_UNAVAILABLE, staging=staged.table, accepted=staged.accepted)
        )
        unavailable = [row[0] for row in cursor.fetchall()]
        if not unavailable:
            return None
        any_truncate = truncates.are_there(cursor, staged)
        casts = {cast.column.name: cast for cast in self.changes.casts(cursor, columns)}
        ordered = [*self.key, *self.version]
        oldest_first = sql.SQL(", ").join(
            [sql.SQL("{} nulls first").format(sql.Identifier(name)) for name in self.version]
            + [sql.Identifier(name) for name in _PLACE]
        )
        return sql.SQL(
            # Materialized, because the values of a staged row that will not be inserted may not be castable.
            "with accepted as materialized (select {ordered}, {place}, task_attempt, deleted, {unavailable} "
            "from {staging} s where {accepted} and not exists (select from ({without}) w (topic, partition, o) "
            "where w.topic = s.kafka_topic and w.partition = s.kafka_partition and w.o = s.kafka_offset)), "
            "staged as (select {ordered}, {place}, null::bigint as task_attempt, deleted, {unavailable} "
            "from {change} where false union all "
            "select {values}, {place}, task_attempt, deleted, {unavailable} from accepted), "
            "affected as (select distinct {key} from staged where {unavailable} is not null and not deleted), "
            "known as (select {ordered}, {place}, null::bigint as task_attempt, deleted, {unavailable} "
            "from {change} c join affected using ({key}) where not {is_replaced} union all "
            "select {ordered}, {place}, task_attempt, deleted, {unavailable} from staged join affected using ({key})"
            "{truncates}), "
            "lives as (select *, count(*) filter (where deleted) over (partition by {key} order by {oldest_first} "
            "rows unbounded preceding) as {life}, {truncates_before} as {epoch} from known), "
            "judged as (select *, {has} from lives) "
            "select task_attempt, kafka_topic, kafka_partition, kafka_offset, case {reasons} end from judged "
            "where task_attempt is not null and not deleted and {lacks}"
        ).format(
            ordered=column_list(ordered),
            place=column_list(_PLACE),
            unavailable=_UNAVAILABLE,
            staging=staged.table,
            accepted=staged.accepted,
            without=without,
            change=self.changes.identifier,
            values=sql.SQL(", ").join(casts[name].expression for name in ordered),
            key=column_list(self.key),
            is_replaced=is_replaced_by(staged.batch_id),
            oldest_first=oldest_first,
            truncates=self._truncates(staged) if any_truncate else sql.SQL(""),
            life=_LIFE,
            epoch=_EPOCH,
            truncates_before=self._truncates_before if any_truncate else sql.SQL("0"),
            has=sql.SQL(", ").join(
                sql.SQL(
                    "coalesce(bool_or(not deleted and not {is_unavailable}) over (partition by {key}, {epoch}, {life} "
                    "order by {oldest_first} rows between unbounded preceding and 1 preceding), false) as {has}"
                ).format(
                    is_unavailable=_is_unavailable(name),
                    key=column_list(self.key),
                    life=_LIFE,
                    epoch=_EPOCH,
                    oldest_first=oldest_first,
                    has=sql.Identifier(f"has {number}"),
                )
                for number, name in enumerate(unavailable)
            ),
            reasons=sql.SQL(" ").join(
                sql.SQL("when {} and not {} then {}").format(
                    _is_unavailable(name), sql.Identifier(f"has {number}"), sql.Literal(why_unavailable(name))
                )
                for number, name in enumerate(unavailable)
            ),
            lacks=sql.SQL("({})").format(
                sql.SQL(" or ").join(
                    sql.SQL("{} and not {}").format(_is_unavailable(name), sql.Identifier(f"has {number}"))
                    for number, name in enumerate(unavailable)
                )
            ),
        )

    def _truncates(self, staged: StagedRows) -> sql.Composable:
        """Return another part of the known changes: all truncates, which have no key."""
        return sql.SQL(
            " union all select {ordered}, {place}, null, deleted, {unavailable} from {change} c "
            "where {is_truncate} and not {is_replaced} union all "
            "select {ordered}, {place}, task_attempt, deleted, {unavailable} from staged where {is_truncate}"
        ).format(
            ordered=column_list([*self.key, *self.version]),
            place=column_list(_PLACE),
            unavailable=_UNAVAILABLE,
            change=self.changes.identifier,
            is_truncate=is_truncate(self.key),
            is_replaced=is_replaced_by(staged.batch_id),
        )

    @property
    def _truncates_before(self) -> sql.Composable:
        """How many truncates are older than a known change; one with an equal version is newer."""
        return sql.SQL(
            "count(*) filter (where {is_truncate}) over (order by {versions}, {is_truncate} rows unbounded preceding)"
        ).format(
            is_truncate=is_truncate(self.key),
            versions=sql.SQL(", ").join(
                sql.SQL("{} nulls first").format(sql.Identifier(name)) for name in self.version
            ),
        )

    def resolve(
        self,
        cursor: Cursor,
        staged: StagedRows,
        columns: Sequence[Column],
        kept: sql.Identifier,
        *,
        affected: sql.Identifier,
        newest_truncate: sql.Identifier | None,
    ) -> None:
        """Give the latest changes the values that were left out of them; `kept` is the table of those that earlier
        batches left.

        The staged changes have been inserted, and `newest_truncate` is what Truncates.find() has returned. The staged
        changes that lack a value are moved to those that are kept as whole rows, which are complete then. Raises
        TargetMismatch if a replay retracts the only change that has a value, and StagedRowsDiffer if another batch has
        done so since the staged changes were checked.
        """
        if UNAVAILABLE.name not in self.changes.table.columns(cursor):
            return
        cursor.execute(
            sql.SQL(
                "insert into {kept} select c.* from {change} c join {staged} s on {same_key} and {same_place} "
                "where not s.deleted and c.{unavailable} is not null and c.batch_id = {batch_id}"
            ).format(
                kept=kept,
                change=self.changes.identifier,
                staged=STAGED,
                same_key=same_values(self.key, "c", "s"),
                same_place=same_values(_PLACE, "c", "s"),
                unavailable=_UNAVAILABLE,
                batch_id=sql.Literal(staged.batch_id),
            )
        )
        if cursor.rowcount:
            cursor.execute(
                sql.SQL(
                    "delete from {staged} s using {kept} k where {same_key} and {same_place} "
                    "and k.batch_id = {batch_id} and k.{unavailable} is not null"
                ).format(
                    staged=STAGED,
                    kept=kept,
                    same_key=same_values(self.key, "k", "s"),
                    same_place=same_values(_PLACE, "k", "s"),
                    batch_id=sql.Literal(staged.batch_id),
                    unavailable=_UNAVAILABLE,
                )
            )
        cursor.execute(
            sql.SQL("select distinct unnest({}) from {} where not deleted order by 1").format(
                _UNAVAILABLE, kept
            )
        )
        unavailable = {row[0] for row in cursor.fetchall()}
        for column in columns:
            if column.name in unavailable:
                self._resolve_column(
                    cursor,
                    staged,
                    column.name,
                    kept,
                    affected=affected,
                    newest_truncate=newest_truncate,
                )

    def _resolve_column(
        self,
        cursor: Cursor,
        staged: StagedRows,
        name: str,
        kept: sql.Identifier,
        *,
        affected: sql.Identifier,
        newest_truncate: sql.Identifier | None,
    ) -> None:
        # A latest change is the newest of its key, so that every other one is older.
        lacking = sql.SQL("not k.deleted and {}").format(_is_unavailable(name, "k"))
        cursor.execute(sql.SQL("select count(*) from {} k where {}").format(kept, lacking))
        expected = int(cursor.fetchone()[0])
        is_retracted = sql.SQL(
            "exists (select from {affected} a where {of_affected} and a.{by_truncate} is null)"
        ).format(affected=affected, of_affected=same_values(self.key, "a", "k"), by_truncate=BY_TRUNCATE)
        # A delete or truncate that arrived late leaves the row its value. But once a replay has retracted changes of
        # the key, it ends the search: the value before it was another row's. Only truncates that are older than
        # the latest change are left to look at.
        older = sql.SQL(
            'select found."exactbatch value" from (select {versions} c.{column} as "exactbatch value", c.deleted '
            "from {change} c where {same_key} and not {is_unavailable} and (not c.deleted or {is_retracted}) "
            "order by {latest_first} limit 1) found where not found.deleted{after_truncates}"
        ).format(
            versions=sql.SQL("").join(
                sql.SQL("c.{}, ").format(sql.Identifier(each)) for each in self.version
            ),
            after_truncates=sql.SQL(
                " and not ({is_retracted} and exists (select from {newest} t where not {is_newer}))"
            ).format(
                is_retracted=is_retracted,
                newest=newest_truncate,
                is_newer=is_greater(self.version, "found", "t"),
            )
            if newest_truncate is not None
            else sql.SQL(""),
            column=sql.Identifier(name),
            change=self.changes.identifier,
            same_key=same_values(self.key, "c", "k"),
            is_retracted=is_retracted,
            is_unavailable=_is_unavailable(name, "c"),
            latest_first=latest_first(self.version),
        )
        cursor.execute(
            sql.SQL(
                'update {kept} t set {column} = found."exactbatch value" '
                'from (select k.ctid as row, older."exactbatch value" from {kept} k cross join lateral ({older}) older '
                "where {lacking}) found where t.ctid = found.row"
            ).format(kept=kept, column=sql.Identifier(name), older=older, lacking=lacking)
        )
        if cursor.rowcount != expected:
            self._raise_unavailable(cursor, staged, name, kept, older, lacking)

    def _raise_unavailable(
        self,
        cursor: Cursor,
        staged: StagedRows,
        name: str,
        kept: sql.Identifier,
        older: sql.Composable,
        lacking: sql.Composable,
    ) -> None:
        cursor.execute(
            sql.SQL(
                "select k.kafka_topic, k.kafka_partition, k.kafka_offset, k.batch_id, concat_ws(', ', {key}) as key "
                "from {kept} k where {lacking} and not exists ({older}) order by 1, 2, 3 limit 1"
            ).format(
                key=sql.SQL(", ").join(sql.SQL("k.{}::text").format(sql.Identifier(key)) for key in self.key),
                kept=kept,
                lacking=lacking,
                older=older,
            )
        )
        topic, partition, offset, batch_id, key = cursor.fetchone()
        place = {"topic": topic, "partition": partition, "from_offset": offset, "until_offset": offset + 1}
        if batch_id == staged.batch_id:
            raise StagedRowsDiffer(
                f"{topic}[{partition}] offset {offset}: another batch has retracted the change from which the value of "
                f"column {name!r} was to come. Nothing was written; try again.",
                batch_id=staged.batch_id,
                **place,
            )
        raise TargetMismatch(
            f"table {self.changes.table.spec}, key ({', '.join(self.key)}) = ({key}): the source left column {name!r} "
            f"out of the change at {topic}[{partition}] offset {offset}, and this replay retracts the only older "
            f"change that has its value. Nothing was written. Replay that offset as well: the change then becomes a "
            f"reject.",
            column=name,
            batch_id=staged.batch_id,
            **place,
        )


def _is_unavailable(name: str, of: str | None = None) -> sql.Composable:
    """Return the condition that the value of a column is unavailable in a change."""
    unavailable = _UNAVAILABLE if of is None else sql.Identifier(of, UNAVAILABLE.name)
    return sql.SQL("coalesce({} = any({}), false)").format(sql.Literal(name), unavailable)


def why_unavailable(column: str) -> str:
    """Return the reason of a reject that lacks the value of a column."""
    return (
        f"column {column!r}: the source left the value out because it had not changed, and no older change of the key "
        f"has it. Replay this offset when such a change has arrived. For Postgres, run `alter table … replica identity "
        f"full` at the source, or configure the connector's ReselectColumnsPostProcessor to read such values"
    )

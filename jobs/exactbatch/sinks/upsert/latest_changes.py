"""Derive the rows of an Upsert's target from the latest changes of the affected keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import KeyOnTwoPartitions, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import AFFECTED
from exactbatch.sinks.tables.constraint_errors import candidates_of
from exactbatch.sinks.tables.counted_writes import delete_rows, forbid_changes, write_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list

_LATEST: Final = sql.Identifier("exactbatch_latest")
_KEYS_SHOWN: Final = 5


@dataclass(frozen=True)
class LatestChanges:
    """The changes of an Upsert, and the target that holds the latest one of each key."""

    target: TargetTable
    changes: LineageTable
    key: Sequence[str]
    version: str | None

    def create_index(self, cursor: Cursor) -> None:
        """Create the index of a new table of changes by which the changes of a key are found."""
        cursor.execute(
            sql.SQL("create index on {} ({})").format(self.changes.identifier, column_list(self.key))
        )

    def derive(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Compute the rows of all affected keys again; those of staged changes, which were inserted, included.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, and TargetMismatch if the target
        refuses or alters a row.
        """
        self._add_affected(cursor, staged, columns)
        if self.version is None:
            self._check_partitions(cursor)
        casts = self.target.casts(cursor, columns)
        candidates = sql.SQL("{} and not deleted").format(candidates_of(casts, staged))
        with forbid_changes(cursor, self.changes.table, while_writing=self.target):
            self._write(cursor, casts, candidates)

    def check_one_per_record(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        ordered = [*self.key, *([] if self.version is None else [self.version])]
        casts = {cast.column.name: cast for cast in self.changes.casts(cursor, columns)}
        # The first branch gives the types and collations by which the changes are compared.
        cursor.execute(
            sql.SQL(
                "select {texts} as change, kafka_topic as topic, kafka_partition as partition, "
                'kafka_offset as "offset" from ('
                "select {names}, kafka_topic, kafka_partition, kafka_offset from {change} where false union all "
                "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} "
                "where {accepted}) staged "
                "group by {names}, 2, 3, 4 having count(*) > 1 order by 2, 3, 4 limit {limit}"
            ).format(
                texts=sql.SQL(" || ', ' || ").join(
                    sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in ordered
                ),
                names=column_list(ordered),
                change=self.changes.identifier,
                values=sql.SQL(", ").join(casts[name].expression for name in ordered),
                staging=staged.table,
                accepted=staged.accepted,
                limit=sql.Literal(_KEYS_SHOWN),
            )
        )
        if rows := cursor.fetchall():
            shown = "; ".join(
                f"{row.topic}[{row.partition}] offset {row.offset}: ({row.change})" for row in rows
            )
            raise TargetMismatch(
                f"target {self.target.spec}: a record gives several changes of one key, and nothing says which of "
                f"them is the latest. The first, as ({', '.join(ordered)}): {shown}. Nothing was written. Let the "
                f"transform give one change for each key and record, or changes whose version differs.",
                topic=rows[0].topic,
                partition=rows[0].partition,
                from_offset=rows[0].offset,
                until_offset=rows[0].offset + 1,
            )

    def _add_affected(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Add the keys of the staged changes to the affected ones."""
        types = {cast.column.name: cast.type for cast in self.changes.casts(cursor, columns)}
        cursor.execute(
            sql.SQL(
                "insert into {affected} ({names}) select distinct {key} from {staging} where {accepted}"
            ).format(
                affected=AFFECTED,
                names=column_list(self.key),
                # In the types of the changes: a staged uuid is text.
                key=sql.SQL(", ").join(
                    sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(types[name])) for name in self.key
                ),
                staging=staged.table,
                accepted=staged.accepted,
            )
        )
        cursor.execute(sql.SQL("analyze {}").format(AFFECTED))

    def _check_partitions(self, cursor: Cursor) -> None:
        # psycopg2's named tuples cannot have every column name that a key can have.
        aliased = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(sql.Identifier(name), sql.Identifier(f"key_{index}"))
            for index, name in enumerate(self.key)
        )
        cursor.execute(
            sql.SQL(
                "select {aliased}, array_agg(distinct kafka_topic || '[' || kafka_partition || ']') as partitions "
                "from {change} join (select distinct {key} from {affected}) affected using ({key}) "
                "group by {key} having count(distinct (kafka_topic, kafka_partition)) > 1 "
                "order by {key} limit {limit}"
            ).format(
                aliased=aliased,
                key=column_list(self.key),
                change=self.changes.identifier,
                affected=AFFECTED,
                limit=sql.Literal(_KEYS_SHOWN),
            )
        )
        if rows := cursor.fetchall():
            shown = "; ".join(
                f"({', '.join(map(repr, row[:-1]))}) in {' and '.join(row[-1])}" for row in rows
            )
            raise KeyOnTwoPartitions(
                f"target {self.target.spec}: changes of one key are in several partitions, so that offsets do not "
                f"give their order: ({', '.join(self.key)}) = {shown}. Nothing was written. Name the column that "
                f"orders them, Upsert(…, version=…), or let producers send a key to one partition."
            )

    def _write(self, cursor: Cursor, casts: Sequence[Cast], candidates: sql.Composable) -> None:
        """Delete and write rows of the affected keys; `candidates` are those of this batch, for errors."""
        # Equal keys can look different: the row has the key as its latest change writes it.
        written = [
            cast.column.name
            for cast in casts
            if cast.column.name not in self.key or not has_one_image(cast.type)
        ]
        parts = {
            "target": self.target.identifier,
            "change": self.changes.identifier,
            "affected": AFFECTED,
            "latest": _LATEST,
            "key": column_list(self.key),
            "names": column_list(cast.column.name for cast in casts),
            "values": sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Identifier(cast.column.name), sql.SQL(cast.type))
                for cast in casts
            ),
            "order": sql.SQL(", ").join([*map(sql.Identifier, self.key), latest_first(self.version)]),
            "same_key": sql.SQL(" and ").join(
                sql.SQL("l.{0} = t.{0}").format(sql.Identifier(name)) for name in self.key
            ),
        }
        cursor.execute(
            sql.SQL(
                "create temporary table {latest} on commit drop as select distinct on ({key}) {names}, deleted "
                "from {change} join (select distinct {key} from {affected}) affected using ({key}) "
                "order by {order}"
            ).format(**parts)
        )
        obsolete = sql.SQL(
            "(select distinct {key} from {affected}) l where {same_key} "
            "and not exists (select from {latest} l where {same_key} and not l.deleted)"
        ).format(**parts)
        triggers = self.target.triggers(cursor)
        delete_rows(
            cursor,
            self.target,
            sql.SQL("delete from {} t using {}").format(self.target.identifier, obsolete),
            # The check costs as much as the statement: only if something could have kept rows.
            remaining=sql.SQL("select count(*) from {} t, {}").format(self.target.identifier, obsolete)
            if triggers
            else None,
        )
        # An unchanged row is not written: no dead row, and no trigger sees a change.
        update = (
            sql.SQL("do update set {} where {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in written
                ),
                differs(written, "t", "excluded"),
            )
            if written
            else sql.SQL("do nothing")
        )
        write_rows(
            cursor,
            self.target,
            sql.SQL(
                "insert into {target} as t ({names}) select {values} from {latest} where not deleted "
                "on conflict ({key}) {update}"
            ).format(**parts, update=update),
            candidates=candidates,
        )
        if triggers:
            self._check_written(cursor, casts, parts, obsolete, triggers)

    def _check_written(
        self,
        cursor: Cursor,
        casts: Sequence[Cast],
        parts: Mapping[str, sql.Composable],
        obsolete: sql.Composable,
        triggers: str,
    ) -> None:
        """Check that the affected keys' rows are their latest changes: a trigger may alter or drop them."""
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, count(*) as differing, "
                "(select count(*) from {target} t, {obsolete}) as remaining "
                "from {latest} l left join {target} t on {same_key} where not l.deleted "
                "and (t.tableoid is null or record_image_ne(row({stored}), row({computed})))"
            ).format(
                **parts,
                obsolete=obsolete,
                stored=column_list([cast.column.name for cast in casts], of="t"),
                computed=sql.SQL(", ").join(
                    sql.SQL("{}::{}").format(sql.Identifier("l", cast.column.name), sql.SQL(cast.type))
                    for cast in casts
                ),
            )
        )
        missing, differing, remaining = cursor.fetchone()
        if differing or remaining:
            raise TargetMismatch(
                f"target {self.target.spec}: of the rows of this batch {missing} did not arrive, "
                f"{differing - missing} are not stored as they were written, and {remaining} that were deleted "
                f"are still there: {triggers} alters them. Nothing was written. Drop it, or let it change only "
                f"columns that the pipeline does not write."
            )


def latest_first(version: str | None) -> sql.Composable:
    """Return the order of a key's changes, the latest first."""
    by_version = [] if version is None else [sql.SQL("{} desc nulls last").format(sql.Identifier(version))]
    place = ("kafka_topic", "kafka_partition", "kafka_offset")
    return sql.SQL(", ").join([*by_version, *(sql.SQL("{} desc").format(sql.Identifier(n)) for n in place)])

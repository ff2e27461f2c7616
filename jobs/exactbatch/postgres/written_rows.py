"""Note what statements write into a table, in the order in which they write it, in a temporary table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

WRITTEN: Final = sql.Identifier("pg_temp", "exactbatch_written")
CREATE_WRITTEN: Final = sql.SQL(
    "create temporary table exactbatch_written (number bigint generated always as identity, "
    "removed boolean not null, key bytea, value bytea) on commit drop"
)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Which rows are noted, and what of them. `key` and `value` are expressions over the columns of a row `w`.

    table    schema and name of the table
    columns  the columns to which the expressions refer
    order    expressions that order the rows of one statement
    """

    table: tuple[str, str]
    columns: Sequence[str]
    key: sql.Composable
    value: sql.Composable
    order: sql.Composable

    def noting(
        self, statement: sql.Composable, *, removed: bool, queries: Sequence[sql.Composable] = ()
    ) -> sql.Composable:
        """Return a statement that does the same, notes each row that it writes or deletes, and returns their number.

        `queries` are those of its `with`. Rows that they write or delete are not noted.
        An insert or update must write a table without an alias or with the alias t, a delete must name its table t.
        """
        return sql.SQL(
            "with {queries} written as ({statement} returning {columns}), "
            "noted as (insert into {noted} (removed, key, value) "
            "select {removed}, {key}, {value} from written w order by {order} returning 1) "
            "select (select count(*) from written) as number, (select count(*) from noted) as rows"
        ).format(
            queries=sql.SQL("").join(sql.SQL("{}, ").format(query) for query in queries),
            statement=statement,
            columns=sql.SQL(", ").join(
                sql.Identifier(*(["t"] if removed else []), name) for name in self.columns
            ),
            noted=WRITTEN,
            removed=sql.Literal(removed),
            key=self.key,
            value=self.value,
            order=self.order,
        )

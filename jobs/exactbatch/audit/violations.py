"""Find decoded records for which a check of the pipeline is false, without the code that rejects them."""

from collections.abc import Iterator, Sequence

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.input_checks import is_refused
from exactbatch.postgres.types import find_modifier


def violations(
    columns: Sequence[Column], checks: Sequence[str], *, keeps_deletes: bool
) -> Iterator[sql.Composable]:
    """Yield for each check a condition over decoded records e that it is false, or that it cannot be evaluated because
    a value is not of its column's type."""
    values = [
        sql.SQL(
            "case when {value} is null or {refused} then null else {value}::text::{type} end as {column}"
        ).format(
            value=sql.Identifier("e", column.name),
            column=sql.Identifier(column.name),
            refused=is_refused(
                sql.SQL("{}::text").format(sql.Identifier("e", column.name)),
                column.type,
                find_modifier(column.type),
            ),
            type=sql.SQL(column.type),
        )
        for column in columns
    ]
    for check in checks:
        is_false = sql.SQL("coalesce((select not ({}\n) from (select {}) c), false)").format(
            sql.SQL(check), sql.SQL(", ").join(values)
        )
        yield (
            sql.SQL("(not coalesce(e.deleted, false) and {})").format(is_false) if keeps_deletes else is_false
        )

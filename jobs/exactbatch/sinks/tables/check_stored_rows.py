"""Compare the rows that a table holds after a write with those that were staged, in case triggers altered them."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import Cast

_COLUMNS_SHOWN: Final = 3


def check_stored_rows(
    cursor: Cursor,
    target: TargetTable,
    casts: Sequence[Cast],
    lineage: Sequence[str],
    *,
    staged: StagedRows,
    triggers: str,
) -> None:
    """Raise TargetMismatch unless the table holds exactly the staged rows of the batch.

    Rows are compared by the text of all their columns, which differs where `=` does not. `triggers` names the
    triggers and rules of the table, for the message.
    """
    names = [cast.column.name for cast in casts]
    expected = sql.SQL("select {}{} from {} where {}").format(
        sql.SQL(", ").join(
            sql.SQL("{}::{} as {}").format(
                staged.value(cast), sql.SQL(cast.type), sql.Identifier(cast.column.name)
            )
            for cast in casts
        ),
        sql.SQL("").join(sql.SQL(", {}").format(sql.Identifier(name)) for name in lineage),
        staged.table,
        staged.accepted,
    )
    stored = sql.SQL("select * from {} where batch_id = {}").format(
        target.identifier, sql.Literal(staged.batch_id)
    )
    differing, rows, arrived = _difference(cursor, expected, stored, (*names, *lineage))
    if not differing:
        return
    if arrived != rows:
        raise TargetMismatch(
            f"target {target.spec}: {rows} rows were written, and {arrived} arrived, because of {triggers}. Nothing "
            f"was written. Drop {triggers}, or exempt the pipeline's rows."
        )
    columns = _altered(cursor, expected, stored, names, lineage)
    where = f", column {', '.join(columns)}" if columns else ""
    raise TargetMismatch(
        f"target {target.spec}{where}: {differing} of {rows} rows are not stored as they were written, because of "
        f"{triggers}. Nothing was written. Drop {triggers}, or change there only columns that the pipeline does not "
        f"write."
    )


def _altered(
    cursor: Cursor,
    expected: sql.Composable,
    stored: sql.Composable,
    names: Sequence[str],
    lineage: Sequence[str],
) -> list[str]:
    """Return the first columns that differ. Rows are paired by the lineage, or by what of it is not altered itself."""

    def differ(columns: Sequence[str]) -> bool:
        return bool(columns) and _difference(cursor, expected, stored, columns)[0] > 0

    altered: list[str] = []
    if differ(lineage):
        altered = [name for name in lineage if not differ([other for other in lineage if other != name])]
        altered = altered or [name for name in lineage if differ([name])]
    pairs = [name for name in lineage if name not in altered]
    for name in names:
        if len(altered) < _COLUMNS_SHOWN and differ([name, *pairs]):
            altered.append(name)
    return altered[:_COLUMNS_SHOWN]


def _difference(
    cursor: Cursor, expected: sql.Composable, stored: sql.Composable, names: Sequence[str]
) -> tuple[int, int, int]:
    """Compare two queries by some columns. Return how many rows only one of them has (the greater number, if each
    has some), how many are expected, and how many are stored."""
    image = sql.SQL("select row({})::text as image, count(*) as n from").format(
        sql.SQL(", ").join(map(sql.Identifier, names))
    )
    cursor.execute(
        sql.SQL(
            "select coalesce(greatest(sum(greatest(w.n - coalesce(s.n, 0), 0)), "
            "sum(greatest(s.n - coalesce(w.n, 0), 0))), 0)::bigint as differ, "
            "coalesce(sum(w.n), 0)::bigint as expected, coalesce(sum(s.n), 0)::bigint as stored "
            "from ({image} ({expected}) expected group by 1) w "
            "full join ({image} ({stored}) stored group by 1) s using (image)"
        ).format(image=image, expected=expected, stored=stored)
    )
    differing, rows, arrived = cursor.fetchone()
    return int(differing), int(rows), int(arrived)

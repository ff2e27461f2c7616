"""What is stored after a write, compared with what was to be stored, where triggers or rules could alter it."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.cast import Cast
from exactbatch.sinks.target import TargetTable

_COLUMNS_SHOWN: Final = 3


def check_stored(
    cursor: Cursor,
    target: TargetTable,
    casts: Sequence[Cast],
    lineage: Sequence[str],
    *,
    staging: sql.Composable,
    batch_id: int,
    attempts: Sequence[int],
    guards: str,
) -> None:
    """Raise TargetMismatch unless the table holds the staged rows as they are, and no others of the batch.

    Rows are compared by the text of all their columns, which tells apart what `=` does not.
    """
    names = [cast.column.name for cast in casts]
    wanted = sql.SQL("select {}{} from {} where task_attempt = any({})").format(
        sql.SQL(", ").join(
            sql.SQL("{0}::{1} as {0}").format(sql.Identifier(cast.column.name), sql.SQL(cast.type))
            for cast in casts
        ),
        sql.SQL("").join(sql.SQL(", {}").format(sql.Identifier(name)) for name in lineage),
        staging,
        sql.Literal(list(attempts)),
    )
    stored = sql.SQL("select * from {} where batch_id = {}").format(target.identifier, sql.Literal(batch_id))
    differ, rows, there = _difference(cursor, wanted, stored, (*names, *lineage))
    if not differ:
        return
    if there != rows:
        raise TargetMismatch(
            f"target {target.written}: {there} rows have arrived of {rows} that were written: {guards} leaves "
            f"some out or adds others. Nothing was written. Drop it, or let it leave the "
            f"pipeline's rows alone."
        )
    columns: list[str] = []
    for name in (*names, *lineage):
        beside = [each for each in lineage if each != name]
        if len(columns) < _COLUMNS_SHOWN and _difference(cursor, wanted, stored, (name, *beside))[0]:
            columns.append(name)
    what = f", column {', '.join(columns)}" if columns else ""
    raise TargetMismatch(
        f"target {target.written}{what}: {differ} of {rows} rows are not stored as they were written: {guards} "
        f"alters them. Nothing was written. Drop it, or let it change only columns that the pipeline does not "
        f"write."
    )


def _difference(
    cursor: Cursor, wanted: sql.Composable, stored: sql.Composable, names: Sequence[str]
) -> tuple[int, int, int]:
    """How many rows are in one of two queries and not in the other, the greater of both numbers; how many
    are wanted, and how many are there."""
    image = sql.SQL("select row({})::text as image, count(*) as n from").format(
        sql.SQL(", ").join(map(sql.Identifier, names))
    )
    cursor.execute(
        sql.SQL(
            "select coalesce(greatest(sum(greatest(w.n - coalesce(s.n, 0), 0)), "
            "sum(greatest(s.n - coalesce(w.n, 0), 0))), 0)::bigint as differ, "
            "coalesce(sum(w.n), 0)::bigint as wanted, coalesce(sum(s.n), 0)::bigint as there "
            "from ({image} ({wanted}) wanted group by 1) w "
            "full join ({image} ({stored}) stored group by 1) s using (image)"
        ).format(image=image, wanted=wanted, stored=stored)
    )
    differ, rows, there = cursor.fetchone()
    return int(differ), int(rows), int(there)

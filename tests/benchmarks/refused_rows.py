"""What it costs to reject records whose rows the target refuses.

Stages rows by SQL, so that nothing but Postgres takes time, and publishes them: first none are refused, then one, then
a thousand. Prints seconds and the ratio to the batch without them. A whole batch also reads and decodes its records
once, which lowers the ratios.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from psycopg2 import sql  # noqa: E402 - below the path to tests/support

from exactbatch import Append, Json, Pipeline, Upsert  # noqa: E402
from exactbatch.batch.publishing.fences import facts_of  # noqa: E402
from exactbatch.batch.publishing.publish import publish  # noqa: E402
from exactbatch.batch.staging.staging_tables import (  # noqa: E402
    StagingTables,
    create_rejects,
    create_rows,
    identifier,
)
from exactbatch.batch.staging.task import Staged, StagedBatch  # noqa: E402
from exactbatch.errors import TargetMismatch  # noqa: E402
from exactbatch.ledger import Ledger, migrate  # noqa: E402
from exactbatch.local import LocalStack  # noqa: E402
from exactbatch.model import Plan, StoredOffset  # noqa: E402
from exactbatch.offsets import OffsetRange  # noqa: E402
from exactbatch.postgres.connection import connect, transaction  # noqa: E402

HOME: Final = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
_ID: Final = UUID(int=1)
# A bad row has the name of a good one, and a size below 0.
_DDL: Final = {
    "check": "alter table {t} add constraint u check (size >= 0)",
    "unique": "create unique index on {t} (name)",
    "deferred": "alter table {t} add constraint u unique (name) deferrable initially deferred",
    "trigger": "create trigger no before insert or update on {t} for each row execute function no()",
}
_ROWS: Final = """
insert into {staging}
    (task_attempt, kafka_partition, kafka_offset, kafka_timestamp, kafka_topic, id, name, size{deleted})
select 0, 0, n, now(), 't', n, case when n % {every} = {every} - 1 then 'name 0' else 'name ' || n end,
       case when n % {every} = {every} - 1 then -1 else n end{is_deleted}
from generate_series(0, {rows} - 1) n
"""


def measure(connection: Any, kind: str, sink: Any, rows: int, bad: int) -> float:
    """Return the seconds from the first staged row to the commit."""
    name = f"p{time.monotonic_ns()}"
    pipeline = Pipeline(
        name=name, topics=("t",), value=Json("id int, name text, size int"), sink=sink, max_rejects=rows
    )
    table = sink.target
    with transaction(connection) as cursor:
        cursor.execute(f"drop table if exists {table}, {table}_change, {table}_deleted")
        ledger = Ledger(connection)
        ledger.register(pipeline, share_topics=True)
        seed = StoredOffset(topic="t", partition=0, next_offset=0, leader_epoch=None, topic_id=_ID)
        range_ = OffsetRange("t", 0, 0, rows, _ID)
        batch_id = ledger.write_advance(
            pipeline, Plan(seeds=(seed,), losses=(), ranges=(range_,)), origin="cli", run=None
        )
        assert batch_id is not None
        plan_id = ledger.batch(batch_id).plan_id
        sink.prepare(cursor, pipeline.value.columns)
        cursor.execute(_DDL[kind].format(t=table))
        seen = facts_of(cursor, sink)
    tables = StagingTables(batch_id, time.monotonic_ns() % 2**60)
    started = time.monotonic()
    with transaction(connection) as cursor:
        create_rejects(cursor, tables)
        create_rows(cursor, tables, sink.staged_columns(pipeline.value.columns))
        cursor.execute(
            sql.SQL(_ROWS).format(
                staging=identifier(tables.rows),
                every=sql.Literal(rows // bad if bad else rows + 1),
                rows=sql.Literal(rows),
                deleted=sql.SQL(", deleted" if sink.keeps_deletes else ""),
                is_deleted=sql.SQL(", false" if sink.keeps_deletes else ""),
            )
        )
    staged = StagedBatch.of([Staged(range_, 0, rows, rows, 0, 0)])
    while True:
        try:
            publish(
                connection,
                pipeline,
                plan_id=plan_id,
                tables=tables,
                columns=pipeline.value.columns,
                staged=staged,
                topic_ids={"t": _ID},
                seen=seen,
                may_reject=rows,
            )
        except TargetMismatch as error:
            staged = _without(connection, tables, staged, error)
            continue
        break
    seconds = time.monotonic() - started
    assert staged.rejected == bad, (staged.rejected, bad)
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL("drop table {}, {}").format(identifier(tables.rows), identifier(tables.rejects))
        )
    return seconds


def _without(
    connection: Any, tables: StagingTables, staged: StagedBatch, error: TargetMismatch
) -> StagedBatch:
    """Move refused rows into the rejects as a batch does, which reads their records from the log again."""
    if not (offsets := [each.offset for each in error.refused]):
        raise error
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL("delete from {} where kafka_offset = any(%s)").format(identifier(tables.rows)), (offsets,)
        )
        cursor.execute(
            sql.SQL(
                'insert into {} (task_attempt, topic, partition, "offset", headers, reason) '
                "select 0, 't', 0, unnest(%s), '[]', 'refused'"
            ).format(identifier(tables.rejects)),
            (offsets,),
        )
    (piece,) = staged.pieces
    rejected = staged.rejected + len(offsets)
    return StagedBatch.of([Staged(piece.range, 0, piece.records, piece.records - rejected, rejected, 0)])


def main() -> None:
    """Measure each kind of constraint with each kind of sink."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--kinds", nargs="+", default=list(_DDL))
    arguments = parser.parse_args()
    stack = LocalStack(HOME, name="refused")
    stack.postgres.configure({}, None)
    stack.postgres.start()
    try:
        connection = connect(stack.postgres_dsn, application="refused", timeout=600)
        migrate(connection)
        with transaction(connection) as cursor:
            cursor.execute(
                "create function no() returns trigger language plpgsql as $$ begin "
                "if new.size < 0 then raise 'no such size'; end if; return new; end $$"
            )
        sinks = {
            "Append": Append("public.log"),
            "Upsert": Upsert("public.state", key=("id",)),
            "latest": Upsert("public.latest", key=("id",), history=False),
        }
        for kind in arguments.kinds:
            for name, sink in sinks.items():
                clean, *refused = (
                    measure(connection, kind, sink, arguments.rows, bad) for bad in (0, 1, 1_000)
                )
                ratios = ", ".join(
                    f"{bad:,} refused {seconds:.1f} s ({seconds / clean:.2f} x)"
                    for bad, seconds in zip((1, 1_000), refused, strict=True)
                )
                print(f"{kind:10} {name:8} none {clean:.1f} s, {ratios}", flush=True)  # noqa: T201
    finally:
        stack.down(delete=True)


if __name__ == "__main__":
    main()

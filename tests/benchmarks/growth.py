"""What plans, replays, status, reports and publishing cost on a ledger with years of history.

Fills a ledger by SQL, then runs each operation in a process of its own, against a real Postgres and a log that exists
only as numbers. Prints milliseconds (the median of five, and the first), the peak memory of the process and what the
operation added to it, and writes build/growth.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from psycopg2 import sql  # noqa: E402

from exactbatch import Aggregate, Append, Count, Json, Max, Pipeline  # noqa: E402 - below the path to tests/support
from exactbatch.ledger import Ledger, migrate  # noqa: E402
from exactbatch.local import LocalStack  # noqa: E402
from exactbatch.operations.report import load_report  # noqa: E402
from exactbatch.operations.status import load_status  # noqa: E402
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance  # noqa: E402
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay  # noqa: E402
from exactbatch.planning.request import ReplayRequest, RequestedRange  # noqa: E402
from exactbatch.postgres.connection import connect, transaction  # noqa: E402
from exactbatch.sinks import FormatFacts  # noqa: E402
from exactbatch.sinks.staged_rows import StagedRows  # noqa: E402
from exactbatch.sinks.writers import find_writer  # noqa: E402
from support.large_ledger import History, fill  # noqa: E402

HOME: Final = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
REPORT: Final = ROOT / "build" / "growth.json"
_RUNS: Final = 5
# An Aggregate without a window, of which each batch has changed each group.
TOTALS: Final = Aggregate("public.totals", group_by=("id",), aggregates={"n": Count(), "most": Max("id")})
TOTALS_WRITER: Final = find_writer(TOTALS.find_traits(FormatFacts()))
_GROUPS, _BATCHES_OF_TOTALS = 200, 20_000


def history_of(batches: int, partitions: int) -> History:
    """Return the history that is measured."""
    pipeline = Pipeline(name="grown", topics=("t",), value=Json("id int"), sink=Append("public.grown"))
    return History(pipeline, batches, partitions)


class Operations:
    """The operations, over one connection. Each may be repeated."""

    def __init__(self, dsn: str, history: History) -> None:
        self.dsn, self.history, self.log = dsn, history, history.log()
        self.connection = connect(dsn, application="growth", timeout=60)
        self.pipeline = history.pipeline
        middle = history.end // 2
        self.range = ReplayRequest(ranges=(RequestedRange(history.topic, 0, middle, middle + 100),))
        at = history.convert_time(middle)
        self.window = ReplayRequest(window=(at, at + timedelta(hours=1)))
        self.batch = ReplayRequest(batch_ids=(history.batches // 3,))

    def by_batch(self) -> Pipeline:
        """Return the pipeline with lineage="batch", and register it so."""
        pipeline = Pipeline(
            name="grown", topics=("t",), value=Json("id int"), sink=Append("public.grown", lineage="batch")
        )
        with transaction(self.connection):
            Ledger(self.connection).registry.register(pipeline, accept_identity=True)
        return pipeline

    def operations(self) -> dict[str, Callable[[], Any]]:
        """Return the operations by name."""
        connection, log, pipeline = self.connection, self.log, self.pipeline
        return {
            "plan": lambda: preview_advance(connection, log, pipeline),
            "plan, frozen": lambda: freeze_advance(connection, log, pipeline, origin="cli"),
            "replay --dry-run of 100 offsets": lambda: preview_replay(connection, log, pipeline, self.range),
            "replay --dry-run of an hour": lambda: preview_replay(connection, log, pipeline, self.window),
            "replay --dry-run of an old batch": lambda: preview_replay(connection, log, pipeline, self.batch),
            "replay plan, frozen": lambda: freeze_replay(connection, log, pipeline, self.range, origin="cli"),
            "publish bookkeeping": self.publish_bookkeeping,
            "publish bookkeeping of a replay": self.replay_bookkeeping,
            "status": lambda: load_status(connection, log, pipeline),
            "report": lambda: load_report(self.dsn, log, pipeline, self.history.batches),
            "Aggregate, insert a batch": self.insert_into_aggregate,
            # The rest changes the registration.
            "by batch: replay --dry-run of 100 offsets": self.preview_by_batch(self.range),
            "by batch: replay --dry-run of an old batch": self.preview_by_batch(self.batch),
            "by batch: replay plan, frozen": self.freeze_by_batch(self.batch),
        }

    def preview_by_batch(self, request: ReplayRequest) -> Callable[[], Any]:
        """Return the preview of a replay of whole batches."""
        return lambda: preview_replay(self.connection, self.log, self.by_batch(), request)

    def freeze_by_batch(self, request: ReplayRequest) -> Callable[[], Any]:
        """Return the plan of a replay of whole batches."""
        return lambda: freeze_replay(self.connection, self.log, self.by_batch(), request, origin="cli")

    def publish_bookkeeping(self) -> None:
        """Do all that a publish does in the ledger, and roll it back."""
        batch_id = freeze_advance(self.connection, self.log, self.pipeline, origin="cli")
        assert batch_id is not None
        self.started = time.perf_counter()
        ledger = Ledger(self.connection)
        try:
            with transaction(self.connection):
                ledger.registry.lock(self.pipeline)
                batch = ledger.batches.read(batch_id, lock="change")
                ranges = ledger.batches.read_ranges(batch_id)
                assert len(ledger.plans.advance_stored_offsets(batch)) == len(ranges)
                ledger.plans.read_stored_offsets(self.pipeline)
                ledger.coverage.add(batch)
                assert len(ledger.coverage.read_batch(batch)) == len(ranges)
                ledger.batches.mark_committed(
                    batch, rows=0, rejected=0, tombstones=0, records=[(each, 0) for each in ranges]
                )
                raise _RolledBack
        except _RolledBack:
            pass

    def replay_bookkeeping(self) -> None:
        """Do all that the publish of a replay of one batch does in the ledger, and roll it back."""
        batch_id = freeze_replay(self.connection, self.log, self.pipeline, self.batch, origin="cli").batch_id
        assert batch_id is not None
        self.started = time.perf_counter()
        ledger = Ledger(self.connection)
        try:
            with transaction(self.connection):
                ledger.registry.lock(self.pipeline)
                batch = ledger.batches.read(batch_id, lock="change")
                ranges = ledger.batches.read_ranges(batch_id)
                ledger.coverage.read_horizons(self.pipeline)
                covered = ledger.coverage.read_batch(batch)
                parts = [(each, sorted({row.batch_id for row in covered if row.batch_id})) for each in ranges]
                ledger.rejects.delete(self.pipeline, parts)
                ledger.coverage.cut(batch)
                ledger.coverage.add(batch)
                assert len(ledger.coverage.read_batch(batch)) == len(ranges)
                ledger.batches.mark_committed(
                    batch, rows=0, rejected=0, tombstones=0, records=[(each, 0) for each in ranges]
                )
                raise _RolledBack
        except _RolledBack:
            pass

    def insert_into_aggregate(self) -> None:
        """Insert a batch of 10,000 rows that changes all groups of an Aggregate, and roll it back."""
        rows = 10_000
        try:
            with transaction(self.connection) as cursor:
                cursor.execute(
                    "create temporary table staged on commit drop as select 1::bigint as task_attempt, "
                    "1 + n %% %s as id from generate_series(1, %s) n",
                    (_GROUPS, rows),
                )
                staged = StagedRows(sql.Identifier("staged"), _BATCHES_OF_TOTALS + 1, {1: rows})
                self.started = time.perf_counter()
                assert TOTALS_WRITER.insert_staged(cursor, staged, self.pipeline.value.columns) == rows
                raise _RolledBack
        except _RolledBack:
            pass

    def measure(self, name: str) -> dict[str, float]:
        """Run an operation several times; return its milliseconds and MB."""
        before = _peak_mb()
        times = []
        for _ in range(_RUNS):
            self.started = time.perf_counter()
            self.operations()[name]()
            times.append((time.perf_counter() - self.started) * 1000)
            if times[0] > 5000:
                break
        after = _peak_mb()
        return {
            "ms": round(median(times), 1),
            "first_ms": round(times[0], 1),
            "mb": after,
            "added_mb": after - before,
        }


class _RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


def _peak_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Fill, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--dsn", help="an existing ledger that this program has filled")
    parser.add_argument("--keep", action="store_true", help="leave Postgres running, and print its address")
    parser.add_argument("--operation", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    history = history_of(arguments.batches, arguments.partitions)
    if arguments.operation:
        print(json.dumps(Operations(arguments.dsn, history).measure(arguments.operation)))  # noqa: T201
        return
    stack = None
    dsn = arguments.dsn
    if dsn is None:
        stack = LocalStack(HOME, name="growth")
        stack.postgres.configure({}, None)
        stack.postgres.start()
        dsn = stack.postgres_dsn
    try:
        if arguments.dsn is None:
            _fill(dsn, history)
        results = {}
        for name in Operations(dsn, history).operations():
            command = [sys.executable, __file__, "--operation", name, "--dsn", dsn]
            command += ["--batches", str(history.batches), "--partitions", str(history.partitions)]
            answer = subprocess.run(command, capture_output=True, text=True)
            results[name] = json.loads(answer.stdout) if answer.returncode == 0 else answer.stderr[-300:]
            print(f"{name:50} {results[name]}", flush=True)  # noqa: T201
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps({"batches": history.batches, "operations": results}, indent=2) + "\n")
    finally:
        if stack is not None:
            if arguments.keep:
                print(dsn)  # noqa: T201
            else:
                stack.down(delete=True)


def _fill(dsn: str, history: History) -> None:
    connection = connect(dsn, application="growth", timeout=60)
    started = time.monotonic()
    migrate(connection)
    fill(connection, history)
    with transaction(connection) as cursor:
        find_writer(history.pipeline.traits).prepare(cursor, history.pipeline.value.columns)
        TOTALS_WRITER.prepare(cursor, history.pipeline.value.columns)
        cursor.execute(
            "insert into public.totals_partial (id, n, most, records, batch_id) select id, 1, id, 1, batch_id "
            "from generate_series(1, %s) batch_id, generate_series(1, %s) id",
            (_BATCHES_OF_TOTALS, _GROUPS),
        )
        cursor.execute(
            "insert into public.totals select id, %s, id from generate_series(1, %s) id",
            (_BATCHES_OF_TOTALS, _GROUPS),
        )
        cursor.execute("analyze public.totals_partial")
        cursor.execute("select pg_size_pretty(pg_database_size(current_database()))")
        print(f"filled in {time.monotonic() - started:.0f} s: {cursor.fetchone()[0]}", flush=True)  # noqa: T201
    connection.close()


if __name__ == "__main__":
    main()

"""`make faults`: run the whole matrix, tell of each combination, and write docs/faults.md."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exactbatch.local import LocalStack
from exactbatch.local.ports import HOST
from support.environment import DOCS, HOME
from support.faults.matrix import (
    ACTIONS,
    BROKER,
    CUT_AFTER,
    FAILPOINTS,
    NETWORK,
    NO_ANSWER,
    ON_THE_WIRE,
    RESTART,
    Combination,
    Moment,
    combinations,
)
from support.faults.proxy import Proxy, proxied_broker
from support.faults.victims import Victims

PAGE: Final = DOCS / "faults.md"
# What was seen last of each combination: a run of some of them leaves the others as they were.
SEEN: Final = HOME / "faults.json"
NOT_EXACT: Final = "**NOT EXACT**"
NOT_RUN: Final = "not run"
Outcomes = dict[Combination, str]


@contextmanager
def victims(spark: Any) -> Iterator[Victims]:
    """Servers of this run alone, behind proxies."""
    stack = LocalStack(HOME, name=f"faults-{os.getpid()}")
    try:
        with proxied_broker(stack.broker) as kafka, tempfile.TemporaryDirectory() as folder:
            stack.postgres.configure({}, None, anywhere=True)
            stack.postgres.start()
            with Proxy((HOST, stack.postgres.port), postgres=True) as postgres:
                yield Victims(spark, stack, kafka, postgres, Path(folder))
    finally:
        stack.down(delete=True)


def run(spark: Any, chosen: Sequence[Combination]) -> Outcomes:
    """Every combination, whatever became of the ones before it."""
    outcomes: Outcomes = {}
    with victims(spark) as them:
        for number, each in enumerate(chosen, 1):
            began = time.monotonic()
            try:
                outcome = them.run(each)
                outcomes[each] = outcome.first
                said = f"{outcome.first} after {outcome.seconds:.1f} s; then exact"
            except Exception as error:  # whatever it was: it is told, and counts as not exact
                outcomes[each] = NOT_EXACT
                said = f"NOT EXACT: {type(error).__name__}: {error}"
                them.mend(each)
            _remember(each, outcomes[each])
            took = time.monotonic() - began
            print(f"[{number}/{len(chosen)}] {each} → {said} ({took:.1f} s)", flush=True)  # noqa: T201
    return outcomes


def _remember(combination: Combination, outcome: str) -> None:
    SEEN.write_text(json.dumps({**_seen(), str(combination): outcome}, indent=1))


def _seen() -> dict[str, str]:
    return dict(json.loads(SEEN.read_text())) if SEEN.exists() else {}


def page(outcomes: Outcomes) -> str:
    """docs/faults.md."""
    outcomes = {each: outcomes.get(each, NOT_RUN) for each in combinations()}
    ran = {each: outcome for each, outcome in outcomes.items() if outcome != NOT_RUN}
    exact = {each: outcome for each, outcome in ran.items() if outcome != NOT_EXACT}
    done = sum(outcome == "done" for outcome in exact.values())
    at_failpoints = _table(outcomes, FAILPOINTS, (*ACTIONS, RESTART, BROKER))
    on_the_wire = _table(outcomes, ON_THE_WIRE, (*NETWORK, CUT_AFTER, NO_ANSWER))
    return f"""# Faults

`make faults` has run {len(ran)} of {len(outcomes)} combinations of fault, moment and sink: **{len(exact)} exact**.
In {done} the try with the fault came through by itself, because Spark tried a task again, a client connected
again, or the fault only took time; in {len(exact) - done} it failed with an error that can be tried again, or
was killed, and the next try made it exact.

A combination is one batch: new records (with repeated and late changes, tombstones and records that do not
decode), a try with the fault, what heals it, and one more try. Exact means: the target is what a plain program
(`tests/support/reference.py`) makes of the log, there is a reject for each bad record, and the auditor
(`exactbatch.audit`) finds nothing. Nothing else is believed. One pipeline for each sink lives through all of its
combinations. All timeouts are 3 s; a try that does not end counts as not exact.

A cell tells how the try with the fault ended: `done`; `killed`; `exception`, the one that the failpoint raised;
or the name of the program's error. `, committed`: the batch was committed all the same, and the next try
recognized it.

Not generated, by rule: before publish, append stands for upsert and aggregate, whose program is the same until
then, and the planner knows no sinks; a delay is tried with append and partition; a driver with a JVM of its own is
killed and stopped with these two, once all is staged or all ranges are committed; a take back is done in a replay,
all else in an advance; bytes are counted where there are many; an answer to COMMIT is dropped where there is a
COMMIT; a broker is killed where it is asked something afterwards, and Postgres restarted once in each step. A
worker is held or stopped for 0.3 s; what drives or publishes, until another launch has tried the same batch.
`compact.before_commit` belongs to no batch; `tests/integration/test_compact.py` kills there.
At `read.after_records` and `transform.after_read` a cluster loses a machine: `tests/faults/test_lost_executors.py`
and `test_three_brokers.py`.

## At failpoints

{at_failpoints}

## On the wire

Through proxies (`tests/support/faults/proxy.py`) between the program and the servers, at the moment when the
program sends what the row names. `half-open`: nothing of what the server says arrives any more.

{on_the_wire}

## What ends a wait

| silent is | noticed after |
| --- | --- |
| Postgres, at connecting | 10 s |
| Postgres, asked something: a statement, rows of a COPY, a COMMIT | `statement_timeout`, and 2 s on the driver |
| a lock, or a driver in its transaction | `publish_timeout` |
| the host of Postgres, so that nothing is acknowledged | `publish_timeout`, or 25 s without traffic |
| Kafka, asked by the planner | `socket.connection.setup.timeout.ms`, or kafka-python's 30 s for a request |
| Kafka, in a read | `read_timeout` |

Run it: `make faults`, in about 25 minutes. It tells of each combination, writes this page, and exits with 1 unless
all are exact. `make test` has a part of it.
"""


def _table(outcomes: Outcomes, moments: Sequence[Moment], faults: Sequence[str]) -> str:
    """One line for each moment and the sinks for which all came out the same."""
    lines = [["moment", "sinks", *faults], ["---"] * (len(faults) + 2)]
    for moment in moments:
        rows: dict[tuple[str, ...], list[str]] = {}
        for sink in moment.sinks:
            cells = tuple(outcomes.get(Combination(sink, moment, fault), "") for fault in faults)
            rows.setdefault(cells, []).append(sink)
        lines += [[moment.name, ", ".join(sinks), *cells] for cells, sinks in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(words: Iterable[str]) -> int:
    """All combinations; or those whose text has one of the words, again; or, with the word `rest` alone, those
    that were not seen exact since all were begun.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    words = list(words)
    if not words:
        SEEN.unlink(missing_ok=True)
    chosen = [each for each in combinations() if not words or any(word in str(each) for word in words)]
    if words == ["rest"]:
        chosen = [each for each in combinations() if _seen().get(str(each), NOT_EXACT) == NOT_EXACT]
    spark = (
        SparkSession.builder.master("local[4, 2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", "support.warm_daemon")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        outcomes = run(spark, chosen)
    finally:
        spark.stop()
    failed = [each for each, outcome in outcomes.items() if outcome == NOT_EXACT]
    print(f"{len(outcomes)} combinations, {len(outcomes) - len(failed)} exact", *failed, sep="\n  ")  # noqa: T201
    seen = _seen()
    PAGE.write_text(page({each: seen[str(each)] for each in combinations() if str(each) in seen}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

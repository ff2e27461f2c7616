"""`make faults`: run the whole matrix, print each result, and write docs/evidence/faults.md."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from support.environment import DOCS, HOME
from support.faults.matrix import (
    ACTIONS,
    BROKER,
    CUT_AFTER,
    FAILPOINTS,
    IN_REPLAYS,
    NETWORK,
    NO_ANSWER,
    ON_THE_WIRE,
    RESTART,
    Combination,
    Moment,
    combinations,
)
from support.faults.servers import Kind, started_servers
from support.faults.victims import Victims
from support.stacks import new_stack

# Faults whose names are long or have a comma, in the tables of the page.
SHORT: Final = {
    "SIGSTOP, SIGCONT": "SIGSTOP",
    RESTART: "restart of Postgres",
    BROKER: "restart of the broker",
}
PAGE: Final = DOCS / "evidence" / "faults.md"
# What was seen last of each combination: a run of some of them leaves the others as they were.
SEEN: Final = HOME / "faults.json"
NOT_EXACT: Final = "NOT EXACT"
NOT_RUN: Final = "not run"
Outcomes = dict[Combination, str]


@contextmanager
def victims(spark: Any, kind: Kind = Kind.PASSWORDS) -> Iterator[Victims]:
    """Servers of this run alone, behind proxies."""
    stack = new_stack(f"faults-{kind}")
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            started_servers(stack, kind) as servers,
            patch.dict(spark.sparkContext.environment, servers.environment),
        ):
            yield Victims(spark, servers, Path(folder))
    finally:
        stack.broker.stop()  # also the ZooKeeper of a broker that has ended
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
            except Exception as error:  # whatever it was: it is reported, and counts as not exact
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
    """Render docs/evidence/faults.md."""
    outcomes = {each: outcomes.get(each, NOT_RUN) for each in combinations()}
    ran = {each: outcome for each, outcome in outcomes.items() if outcome != NOT_RUN}
    exact = {each: outcome for each, outcome in ran.items() if outcome != NOT_EXACT}
    done = sum(outcome == "done" for outcome in exact.values())
    at_failpoints = _table(outcomes, (*FAILPOINTS, *IN_REPLAYS), (*ACTIONS, RESTART, BROKER))
    on_the_wire = _table(outcomes, ON_THE_WIRE, (*NETWORK, CUT_AFTER, NO_ANSWER))
    return f"""# Faults: every combination of fault, moment and sink

`make faults` has run {len(ran)} of {len(outcomes)} combinations of fault, moment and sink: **{len(exact)} exact**.

In {done} of them, the attempt with the fault succeeded without help; in {len(exact) - done}, it failed with a retryable
error or was killed, and the next attempt made it exact. `make faults` takes about 55 minutes, and exits with 1 unless
all are exact. `make test` runs some of them.

## Method

A combination is one batch: new records (including repeated and late changes, tombstones and records that cannot be
decoded), an attempt with the fault, a repair, and another attempt. It is exact if:

- the target holds what a simple reference program computes from the log, and there is a reject for each bad record;
- the auditor finds nothing;
- an attempt that did not commit left the target unchanged, except for committed ranges with `commit="partition"`, and
  the attempt after a commit wrote no row again;
- with `forward=` (`forwarded`, `forwarded_upsert`), a read_committed consumer sees each committed result once, each
  key's in order, and what they make together is the target.

All timeouts are 3 s. An attempt that does not end counts as not exact. The tables say how the attempt with each fault
ended: `done` (it succeeded), `killed`, `exception` (the failpoint's), or the name of exactbatch's error;
`committed` means that the batch was committed nevertheless, and that the next attempt recognized this.

Combinations whose result cannot differ are not generated: before publish, append represents upsert and aggregate, the
planner and a forwarder run the same code for every sink, and a delay is only tried with append and partition. Moments
marked `replay` are tried in a replay, all others in an advance. A worker is held or stopped for 0.3 s; a driver or a
publishing process, until another launch has tried the same batch; a forwarder, until another one has taken its place
(`Fenced`).

## At failpoints

{at_failpoints}

## On the wire

Proxies between exactbatch and the servers inject these faults when exactbatch sends what the row names. `half-open`:
nothing that the server sends arrives any more.

{on_the_wire}

## How long exactbatch waits

| silent party | detected after |
| --- | --- |
| Postgres, while connecting | 10 s |
| Postgres, during a request: a statement, rows of a COPY, a COMMIT | `statement_timeout`, plus 2 s on the driver |
| the holder of a lock, or a driver within its transaction | `lock_timeout` |
| the host of Postgres, so that nothing is acknowledged | `lock_timeout`, or 25 s without traffic |
| Kafka, queried by the planner | `socket.connection.setup.timeout.ms`, or kafka-python's 30 s for a request |
| Kafka, during a read | `read_timeout` |
"""


def _table(outcomes: Outcomes, moments: Sequence[Moment], faults: Sequence[str]) -> str:
    """Return a line for the moments and the sinks for which all came out the same."""
    lines: dict[tuple[str, str], list[str]] = {}
    for moment in moments:
        rows: dict[str, list[str]] = {}
        for sink in moment.sinks:
            ended = {fault: outcomes.get(Combination(sink, moment, fault), "") for fault in faults}
            rows.setdefault(_ended(ended), []).append(sink)
        for cell, sinks in rows.items():
            lines.setdefault((", ".join(sinks), cell), []).append(moment.title)
    head = ["| moments | sinks | how the attempt with each fault ended |", "| --- | --- | --- |"]
    return "\n".join(
        [*head, *(f"| {'; '.join(titles)} | {sinks} | {cell} |" for (sinks, cell), titles in lines.items())]
    )


def _ended(outcomes: Mapping[str, str]) -> str:
    """Return the faults of each outcome: "killed: SIGKILL. done: delay, hold"."""
    faults: dict[str, list[str]] = {}
    for fault, outcome in outcomes.items():
        if outcome:
            faults.setdefault(outcome, []).append(SHORT.get(fault, fault))
    return ". ".join(f"**{outcome}**: {', '.join(found)}" for outcome, found in faults.items())


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

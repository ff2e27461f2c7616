"""Captures workloads: runs them on a source, and returns what the connector writes, and what the tables have then."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from exactbatch.local.postgres import Postgres
from support.workloads.connector import Connector, with_restarts
from support.workloads.events import Event
from support.workloads.generate import Workload
from support.workloads.named import CONTROLS, DEFERRABLE, WORKLOADS
from support.workloads.sessions import Sessions
from support.workloads.source import TABLES, Row, Source

_STEPS: Final = 40
_SESSIONS: Final = 4
_APART: Final = 10  # between the keys of two workloads


@dataclass(frozen=True)
class Captured:
    """The events of workloads, the rows of their tables at the end, and the workload that a key belongs to."""

    events: Sequence[Event]
    rows: Sequence[Row]
    names: Mapping[int, str]

    def different(self, target: Sequence[Row]) -> set[str]:
        """Return the workloads in which a target differs from the source."""
        return {self.names[row[0] // _APART] for row in {*target} ^ {*self.rows}}

    def rows_by_position(self) -> list[Row]:
        """Return what the tables would have if the change with the greatest position were the latest of its key."""
        latest: dict[int, Event] = {}
        for each in self.events:
            if each.key is not None and each.operation not in (None, "r"):
                other = latest.get(each.key, each)
                latest[each.key] = max(other, each, key=lambda event: int(event.source["lsn"]))
        unchanged = [row for row in self.rows if row[0] not in latest]
        changed = [each.after for each in latest.values() if each.after is not None]
        return unchanged + [(row["id"], row["note"], row["body"]) for row in changed]


def capture(
    server: Postgres,
    seed: str,
    count: int,
    tables: Sequence[str] = TABLES,
    *,
    truncates: bool = False,
    writes_commits: bool = False,
) -> Captured:
    """Run this number of random workloads, and those that have names; the connector begins after some of them."""
    chance = random.Random(seed)
    with _sessions(server) as sessions:
        source, names = sessions.source, dict[int, str]()
        begin = max(count // 10, len(tables))
        for number in range(count):
            if number == begin:
                source.create_slot()
                connector = Connector(writes_commits=writes_commits)
                events = connector.snapshot(source.rows(), source.position())
            # After the snapshot, the keys of some of its rows change again.
            is_again = begin <= number < begin + len(tables)
            first, table = number - is_again * len(tables), tables[number % len(tables)]
            names[first] = f"{table} {first}"
            workload = Workload(f"{seed} {number}", table, first * _APART)
            workload.run(sessions, _STEPS)
            if truncates and chance.random() < 0.1:
                source.execute(f"truncate {table}")
        _play(sessions, tables, names, count)
        events += connector.stream(source.transactions())
        rows = [row for found in source.rows().values() for row in found]
    return Captured(with_restarts(events, chance, restarts=1 + count // 10), rows, names)


def _play(sessions: Sessions, tables: Sequence[str], names: dict[int, str], after: int) -> None:
    """Run the workloads that have names, with keys that follow those of the others."""
    for table in tables:
        for name, script in (DEFERRABLE if table == "deferred" else WORKLOADS | CONTROLS).items():
            names[after] = f"{table}: {name}"
            one, two, free = (after * _APART + at for at in range(3))
            sessions.source.execute(f"insert into {table} values (%s, 'one'), (%s, 'two')", one, two)
            sessions.play(script, table=table, one=one, two=two, free=free)
            sessions.finish()
            after += 1


@contextmanager
def _sessions(server: Postgres) -> Iterator[Sessions]:
    source = Source(server)
    sessions = Sessions(source, _SESSIONS)
    try:
        yield sessions
    finally:
        sessions.close()
        source.close()

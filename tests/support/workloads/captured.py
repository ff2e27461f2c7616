"""Captures workloads: runs them on the source, and returns what the connector writes, and what the table has then."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from exactbatch.local.postgres import Postgres
from support.workloads import named
from support.workloads.connector import Connector, Event, with_restarts
from support.workloads.generate import Workload
from support.workloads.sessions import Sessions
from support.workloads.source import Row, Source

_STEPS: Final = 40
_SESSIONS: Final = 4
_APART: Final = 10  # between the keys of two workloads


@dataclass(frozen=True)
class Captured:
    """The events of workloads, and the rows of their table at the end."""

    events: Sequence[Event]
    rows: Sequence[Row]


def capture_random(
    server: Postgres, kind: str, seed: str, count: int, *, truncates: bool = False, writes_commits: bool = False
) -> Captured:
    """Run so many random workloads; the table has rows of the first ones when the connector begins."""
    chance = random.Random(seed)

    def run(sessions: Sessions, number: int) -> None:
        workload = Workload(
            f"{seed} {number}",
            number * _APART,
            leaves_out=kind == "plain",
            upserts=not sessions.source.is_deferrable,
        )
        workload.run(sessions, _STEPS)
        if truncates and chance.random() < 0.1:
            sessions.source.execute(f"truncate {sessions.source.name}")

    def run_from(first: int, until: int) -> Callable[[Sessions], None]:
        return lambda sessions: [run(sessions, each) for each in range(first, until)] and None

    early = max(2, count // 10)
    captured = _captured(server, kind, run_from(0, early), run_from(early // 2, count), writes_commits)
    events = with_restarts(captured.events, chance, restarts=count // 10 + 1)
    return Captured(events, captured.rows)


def capture_named(server: Postgres, kind: str) -> tuple[Captured, dict[int, str]]:
    """Run the workloads that have names, and return the name of the workload of each key."""
    scripts = named.DEFERRABLE if kind == "deferrable" else {**named.WORKLOADS, **named.CONTROLS}
    firsts = {name: number * _APART for number, name in enumerate(scripts)}

    def insert(sessions: Sessions) -> None:
        for each in firsts.values():
            sessions.source.execute(f"insert into {sessions.source.name} values ({each}, 'one'), ({each + 1}, 'two')")

    def play(sessions: Sessions) -> None:
        for name, script in scripts.items():
            sessions.play(script, one=firsts[name], two=firsts[name] + 1, free=firsts[name] + 2)
            sessions.finish()

    keys = {first + at: name for name, first in firsts.items() for at in range(_APART)}
    return _captured(server, kind, insert, play), keys


def _captured(
    server: Postgres,
    kind: str,
    before: Callable[[Sessions], None],
    then: Callable[[Sessions], None],
    writes_commits: bool = False,
) -> Captured:
    with _sessions(server, kind) as sessions:
        source = sessions.source
        before(sessions)
        source.create_slot()
        connector = Connector(source.name, writes_commits=writes_commits)
        events = connector.snapshot(source.rows(), source.position())
        then(sessions)
        return Captured([*events, *connector.stream(source.transactions())], source.rows())


@contextmanager
def _sessions(server: Postgres, kind: str) -> Iterator[Sessions]:
    source = Source(server, "cart", kind)
    sessions = Sessions(source, _SESSIONS)
    try:
        yield sessions
    finally:
        sessions.close()
        source.close()

"""Sessions of a workload, whose statements run in a given order and wait for each other's locks."""

import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg2
from psycopg2 import extensions

from support.workloads.source import Source

_STEP: Final = 0.001  # seconds: most statements have ended by then
_LONGEST: Final = 30.0  # seconds


class Session:
    """A connection that sends a statement and does not wait for its end."""

    def __init__(self, dsn: str) -> None:
        self._connection: Any = psycopg2.connect(dsn, async_=1)
        self._is_waiting = True
        assert self.await_end()
        self._cursor = self._connection.cursor()
        self.errors: list[str] = []
        self.has_failed = False

    @property
    def pid(self) -> int:
        """The process that serves this session."""
        return int(self._connection.get_backend_pid())

    @property
    def is_open(self) -> bool:
        """True in a transaction, also in one that has failed."""
        return bool(self._connection.get_transaction_status() != extensions.TRANSACTION_STATUS_IDLE)

    def send(self, statement: str, *arguments: Any) -> None:
        """Begin a statement. The earlier one must have ended."""
        assert not self._is_waiting
        self._is_waiting, self.has_failed = True, False
        self._cursor.execute(statement, arguments or None)

    def has_ended(self) -> bool:
        """Return False while the statement runs; errors are kept in `errors`, by their SQLSTATE."""
        try:
            if self._is_waiting:
                self._is_waiting = self._connection.poll() != extensions.POLL_OK
        except psycopg2.Error as error:
            self.errors.append(error.pgcode or str(error))
            self._is_waiting, self.has_failed = False, True
        return not self._is_waiting

    def await_end(self, seconds: float = _LONGEST) -> bool:
        """Wait until the statement has ended, and return False if it has not after the time."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(_STEP / 4)
        return True

    def close(self) -> None:
        """End the session."""
        self._connection.close()


@dataclass
class Sessions:
    """The sessions of one workload over a source. Their number is the first part of each step."""

    source: Source
    count: int
    sessions: list[Session] = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = [Session(self.source.dsn) for _ in range(self.count)]

    def idle(self) -> list[int]:
        """The sessions whose statement has ended."""
        return [at for at, each in enumerate(self.sessions) if each.has_ended()]

    def step(self, at: int, statement: str, *arguments: Any) -> None:
        """Send a statement, and return when it has ended or waits for a lock."""
        session = self.sessions[at]
        assert session.await_end(), f"session {at} still waits before {statement}"
        session.send(statement, *arguments)
        while not session.await_end(_STEP) and not self._waits(session.pid):
            pass

    def play(self, script: str, **names: object) -> None:
        """Run the steps of a script, `a: statement; b: statement`; a session is named by a letter."""
        for step in re.split(r";\s*", script.strip().rstrip(";")):
            letter, statement = step.split(": ", 1)
            self.step(ord(letter) - ord("a"), statement.format(**names))

    def finish(self, *, commit: bool = True) -> None:
        """End the transactions that are open, those that can first, and those that are prepared."""
        while any(each.is_open or not each.has_ended() for each in self.sessions):
            self.end_prepared(commit=commit)  # to prepare may have waited, too
            for at in self.idle():
                if self.sessions[at].is_open:
                    self.step(at, "commit" if commit else "rollback")
            time.sleep(_STEP)
        self.end_prepared(commit=commit)

    def end_prepared(self, *, commit: bool) -> None:
        """Commit or roll back what is prepared."""
        for (name,) in self.source.fetch("select gid from pg_prepared_xacts"):
            self.source.execute(f"{'commit' if commit else 'rollback'} prepared %s", name)

    def close(self) -> None:
        """End all sessions."""
        for each in self.sessions:
            each.close()

    def _waits(self, pid: int) -> bool:
        return bool(
            self.source.fetch("select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", pid)
        )

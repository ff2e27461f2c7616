"""Random workloads: sessions that change a few keys, block each other, fail, roll back, and prepare transactions.

With a deferrable key, a transaction does not change what it has inserted: it could insert a second row of a key and
delete it again, while the first one stays. The events of that end with a delete of the key, and no order of events
tells which row it deletes.
"""

import random
import string
from collections.abc import Callable
from typing import Any, Final

from support.workloads.sessions import Sessions

_SESSIONS: Final = 4
_KEYS: Final = 2
_LONG: Final = 2_500  # bytes: more than stay in the row
_ENDS: Final = ("commit", "commit", "commit", "commit", "commit", "rollback", "prepare")


class Workload:
    """Statements for sessions over a table of the source, drawn from a seed. `keys` are the workload's own keys."""

    def __init__(self, seed: str, table: str, first_key: int) -> None:
        self.chance = random.Random(seed)
        self.keys = range(first_key, first_key + _KEYS)
        self._seed, self._table, self._is_deferrable = seed, table, table == "deferred"
        self._written = 0
        self._saved: set[int] = set()  # the sessions whose transaction has a savepoint
        # The sessions, and the keys that their transactions have inserted.
        self._inserted: set[tuple[int, int]] = set()

    def run(self, sessions: Sessions, steps: int) -> None:
        """Run this number of steps, and end all transactions."""
        for _ in range(steps):
            free = sessions.idle()
            if not free or self.chance.random() < 0.02:
                sessions.end_prepared(commit=self.chance.random() < 0.8)
                continue
            self._step(sessions, self.chance.choice(free))
        sessions.finish(commit=self.chance.random() < 0.9)

    def _step(self, sessions: Sessions, at: int) -> None:
        session = sessions.sessions[at]
        if not session.is_open:
            self._saved.discard(at)
            self._inserted -= {(at, key) for key in self.keys}
            if self.chance.random() < 0.8:
                level = self.chance.choice(["read committed"] * 4 + ["repeatable read", "serializable"])
                sessions.step(at, f"begin isolation level {level}")
            else:
                sessions.step(at, *self._change(at))
        elif session.has_failed:
            # An error ends a transaction, or the part of it since a savepoint.
            sessions.step(at, "rollback to before" if at in self._saved else "rollback")
        elif self.chance.random() < 0.25:
            self._end(sessions, at)
        elif at not in self._saved and self.chance.random() < 0.2:
            self._saved.add(at)
            sessions.step(at, "savepoint before")
        elif at in self._saved and self.chance.random() < 0.1:
            sessions.step(at, "rollback to before")
        else:
            sessions.step(at, *self._change(at))

    def _end(self, sessions: Sessions, at: int) -> None:
        end = self.chance.choice(_ENDS)
        if end == "prepare":
            self._written += 1
            end = f"prepare transaction '{self._seed} {self._written}'"
        sessions.step(at, end)

    def _change(self, at: int) -> tuple[Any, ...]:
        """Return a statement and its arguments."""
        table, key = self._table, self.chance.choice(self.keys)
        if self._is_deferrable and (at, key) in self._inserted:
            return ("commit",)
        note, body = self._note(), self._body()
        other = self.chance.choice([each for each in self.keys if each != key])
        # With a long value that stays, the event of the new key would lack it.
        move = f"update {table} set id = %s, note = %s, body = %s where id = %s"
        choices: list[tuple[int, Callable[[], tuple[Any, ...]]]] = [
            (30, lambda: (f"insert into {table} values (%s, %s, %s)", key, note, body)),
            (15, lambda: (f"update {table} set note = %s where id = %s", note, key)),
            (10, lambda: (f"update {table} set note = %s, body = %s where id = %s", note, body, key)),
            (25, lambda: (f"delete from {table} where id = %s", key)),
            (10, lambda: (move, other, note, body, key)),
        ]
        if not self._is_deferrable:
            upsert = (
                f"insert into {table} values (%s, %s, %s) on conflict (id) do update set note = excluded.note"
            )
            choices.append((10, lambda: (upsert, key, note, body)))
        weights, changes = zip(*choices, strict=True)
        change: tuple[Any, ...] = self.chance.choices(changes, weights)[0]()
        if change[0].startswith("insert"):
            self._inserted.add((at, key))
        elif change[0] == move:
            self._inserted.add((at, other))
        return change

    def _note(self) -> str:
        """Return a text that no other change has."""
        self._written += 1
        return f"{self._seed} {self._written}"

    def _body(self) -> str | None:
        kind = self.chance.choice(["none", "short", "long"])
        if kind == "none":
            return None
        if kind == "short":
            return self._note()
        return "".join(self.chance.choices(string.ascii_letters, k=_LONG))

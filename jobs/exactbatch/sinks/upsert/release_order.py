"""Order rows so that each is written after the rows that hold what it takes over."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Row = TypeVar("Row", bound=Hashable)


def order_releases(takeovers: Iterable[tuple[Row, Row]]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows in the order in which to write them, and those to remove before, which come last.

    A takeover is a pair: a row, and another one that holds what the first one is to have. Rows that take over from
    each other in a circle have no such order: one of each circle is among those to remove.
    """
    holders: dict[Row, set[Row]] = defaultdict(set)
    takers: dict[Row, list[Row]] = defaultdict(list)
    for taker, holder in dict.fromkeys(takeovers):
        holders[taker].add(holder)
        takers[holder].append(taker)
    ready = deque(row for row in takers if row not in holders)
    ordered: list[Row] = []
    removed: list[Row] = []
    while ready or holders:
        if ready:
            ordered.append(row := ready.popleft())
        else:
            removed.append(row := _in_circle(holders))
            del holders[row]
        for taker in takers[row]:
            if taker in holders:
                holders[taker].discard(row)
                if not holders[taker]:
                    del holders[taker]
                    ready.append(taker)
    return ordered, removed


def _in_circle(holders: dict[Row, set[Row]]) -> Row:
    """Return a row of a circle; each row waits for another one."""
    row = next(iter(holders))
    seen: set[Row] = set()
    while row not in seen:
        seen.add(row)
        row = next(iter(holders[row]))
    return row

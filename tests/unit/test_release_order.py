"""Rows are written after those whose values they take over; of each circle, one row is removed before."""

import random

import pytest

from exactbatch.sinks.upsert.moving_values import order_releases
from support.environment import draw_seed


@pytest.mark.parametrize(
    ("takeovers", "ordered", "removed"),
    [
        ([], [], []),
        ([(1, 2)], [2, 1], []),
        ([(1, 2), (2, 3)], [3, 2, 1], []),
        ([(1, 2), (1, 2), (1, 3)], [2, 3, 1], []),
        ([(1, 2), (2, 1)], [2], [1]),
        # What only waits for a circle is not removed.
        ([(9, 1), (1, 2), (2, 3), (3, 1)], [9, 3, 2], [1]),
        ([(1, 2), (2, 1), (3, 4), (4, 3)], [2, 4], [1, 3]),
    ],
)
def test_the_order_of_some_rows(takeovers, ordered, removed):
    assert order_releases(takeovers) == (ordered, removed)


def test_random_takeovers_are_in_order():
    chance = random.Random(draw_seed())
    for _ in range(300):
        rows = range(chance.randint(1, 9))
        takeovers = [(chance.choice(rows), chance.choice(rows)) for _ in range(chance.randint(0, 12))]
        takeovers = [(taker, holder) for taker, holder in takeovers if taker != holder]
        ordered, removed = order_releases(takeovers)
        assert sorted([*ordered, *removed]) == sorted({row for pair in takeovers for row in pair})
        for taker, holder in takeovers:
            assert taker in removed or holder in removed or ordered.index(holder) < ordered.index(taker)

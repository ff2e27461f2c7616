"""Every sink under every scenario: the target is what a plain program makes of the log.

A scenario is a list of steps, as data. The fault matrix does such steps while processes are killed. `make test` plays
all steps as one history of each sink, and looks at the target after each part of it: each batch of a scenario costs as
much as one with many kinds of records. `make test-long` also plays each scenario by itself.
"""

from typing import Final

import pytest

from support.scenarios import KINDS

# What comes last in a batch decides what its keys hold at the next check.
HISTORY: Final = (
    *("produce", "retry", "mark"),
    *("produce", "late", "repeated", "tombstones", "bad", "advance", "check"),
    *("produce", "repeated", "out_of_order", "retry", "check"),
    *("backfill", "check"),
    *("replay", "bad", "advance", "replay"),
)
# What the log has beside events, and then how it is processed.
SCENARIOS: Final = {
    "plain": ("produce", "advance", "produce", "advance"),
    "retry": ("produce", "retry", "produce", "retry"),
    "replay": ("produce", "advance", "produce", "advance", "replay", "replay"),
    "backfill": ("produce", "advance", "mark", "produce", "advance", "backfill"),
    "late events": ("produce", "advance", "late", "advance", "replay"),
    "out of order": ("produce", "advance", "out_of_order", "advance", "replay"),
    "repeated by a producer": ("repeated", "advance", "repeated", "produce", "advance", "replay"),
    "tombstones": ("produce", "advance", "tombstones", "advance", "replay"),
    "bad records": ("produce", "bad", "advance", "bad", "advance", "replay"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_what_the_log_makes_it_in_a_history_of_all_steps(play, kind):
    played = play(kind)
    for step in HISTORY:
        getattr(played, step)()
    played.check()


def test_the_history_has_all_steps():
    assert set(HISTORY) == {step for steps in SCENARIOS.values() for step in steps} | {"check"}


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_what_the_log_makes_it(play, kind, scenario):
    played = play(kind)
    for step in SCENARIOS[scenario]:
        getattr(played, step)()
    played.check()

"""Workloads of a real Postgres whose sessions conflict: in every mode, the target is what the source has."""

import random
from typing import Final

import pytest

from support.environment import LONG, draw_seed
from support.workloads.captured import capture
from support.workloads.handwritten import ROWS, STORIES
from support.workloads.loading import OFFSETS, VERSIONS, Loader, Mode
from support.workloads.named import CONTROLS, DEFERRABLE, WORKLOADS
from support.workloads.source import TABLES, running_source

COUNT: Final = 45
ROUNDS: Final = 12 if LONG else 1
IN_A_ROUND: Final = 90
# The tables whose updates decode as whole rows.
WHOLE: Final = ("whole", "deferred")
MODES: Final = (*OFFSETS, *VERSIONS)
BY_HAND: Final = (
    Mode(is_versioned=False, history=True),
    Mode(is_versioned=False, history=False, partitions=2),
    Mode(is_versioned=True, history=True, partitions=2, keys_move=True),
    Mode(is_versioned=True, history=False),
)


@pytest.fixture(scope="module")
def source():
    with running_source() as server:
        yield server


@pytest.fixture(scope="module")
def captured(source):
    """Workloads for the modes that keep the values that an update leaves out, and for the others."""
    seed = draw_seed()
    return {
        True: capture(source, f"{seed} a", COUNT),
        False: capture(source, f"{seed} b", COUNT, WHOLE),
    }


@pytest.fixture
def loader(world, make_topic, make_pipeline):
    return Loader(world, make_topic, make_pipeline)


def test_newer_changes_have_smaller_positions_in_all_workloads_that_are_named_for_it(captured):
    workloads = captured[False]
    found = workloads.different(workloads.rows_by_position())
    names = {*(f"whole: {name}" for name in WORKLOADS), *(f"deferred: {name}" for name in DEFERRABLE)}
    assert found > names  # and in some of the random ones
    assert not any(name in each for each in found for name in CONTROLS)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_target_of_conflicting_sessions_is_what_their_source_has(loader, captured, mode):
    workloads = captured[mode.keeps_unavailable]
    target = loader.load(mode, workloads.events, random.Random(f"{mode} {draw_seed()}"))
    assert workloads.different(target) == set()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("tables", [TABLES, WHOLE])
def test_the_target_of_hundreds_of_workloads_is_what_their_source_has(loader, source, tables, number):
    seed = f"{draw_seed()} {number} {tables}"
    workloads = capture(source, seed, IN_A_ROUND, tables, writes_commits=number % 2 == 1)
    assert workloads.different(workloads.rows_by_position()) != set()
    chance = random.Random(seed)
    modes = [each for each in MODES if each.keeps_unavailable == (tables == TABLES)]
    found = {str(each): workloads.different(loader.load(each, workloads.events, chance)) for each in modes}
    assert found == {mode: set() for mode in found}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_truncates_among_conflicting_sessions_are_applied(loader, source, number):
    """They need a version and a history, and a truncate empties the target: it has one table of the source."""
    seed = f"{draw_seed()} truncates {number}"
    workloads = capture(source, seed, COUNT, TABLES[:1], truncates=True)
    mode = random.Random(seed).choice([each for each in VERSIONS if each.keeps_unavailable])
    assert workloads.different(loader.load(mode, workloads.events, random.Random(seed))) == set()


@pytest.mark.parametrize("mode", BY_HAND, ids=str)
@pytest.mark.parametrize("connector", STORIES)
def test_events_of_other_connectors_give_the_rows_of_their_source(loader, connector, mode):
    chance = random.Random(connector)
    assert loader.load(mode, STORIES[connector](), chance, batches=1, connector=connector) == ROWS

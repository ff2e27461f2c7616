"""Workloads of a real Postgres whose sessions conflict: in every mode, the target is what the source has."""

import random
from typing import Final

import pytest

from support.environment import LONG, draw_seed
from support.workloads.captured import capture_named, capture_random
from support.workloads.loading import OFFSETS, VERSIONS, Loader, different_keys
from support.workloads.source import running_source

WORKLOADS: Final = 40
ROUNDS: Final = 8 if LONG else 4
MODES: Final = [*OFFSETS, *VERSIONS]


def kind_for(mode, chance):
    """Without a history, what an update leaves out is unknown: its table writes whole rows."""
    return chance.choice(["plain", "deferrable"] if mode.history else ["full", "deferrable"])


@pytest.fixture(scope="module")
def source():
    with running_source() as server:
        yield server


@pytest.fixture(scope="module")
def named(source):
    return {kind: capture_named(source, kind) for kind in ("full", "deferrable")}


@pytest.fixture
def loader(world, make_topic, make_pipeline):
    return Loader(world, make_topic, make_pipeline)


@pytest.fixture(scope="module")
def captured(source):
    return {kind: capture_random(source, kind, f"{draw_seed()} {kind}", WORKLOADS) for kind in ("plain", "full", "deferrable")}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_newer_change_with_a_smaller_position_wins(loader, named, mode):
    chance = random.Random(str(mode))
    for captured, names in named.values():
        target = loader.load(mode, captured.events, chance)
        assert {names[each] for each in different_keys(target, captured.rows)} == set()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_random_workloads_give_the_source(loader, captured, mode):
    chance = random.Random(f"{mode} {draw_seed()}")
    each = captured[kind_for(mode, chance)]
    assert different_keys(loader.load(mode, each.events, chance), each.rows) == []

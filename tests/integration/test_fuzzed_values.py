"""Fuzzed JSON values among good ones: what arrives is what a strict decoder says of each value by itself.

EXACTBATCH_SEED repeats a run; `make test-long` takes 100,000 values.
"""

import os
from itertools import islice
from typing import Any

import pytest

from exactbatch import Json, Pipeline, Tuning
from support.batch_runner import BatchRunner
from support.environment import LONG, draw_seed
from support.fuzzed_values import COLUMNS, LABELS, Fuzzer
from support.strict_decoder import SHOWN, Refused, as_expected, select_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

VALUES = int(os.environ.get("EXACTBATCH_VALUES", 100_000 if LONG else 6_000))
# The share of values that are fuzzed; about two thirds of these become rejects, which cost much more than rows.
FUZZED = 0.1 if LONG else 0.05
OF_900_KB = 30
PARTITIONS = 4

# By (partition, offset), what a record gives: the values of a row, the bytes of a reject, or nothing.
Outcomes = dict[tuple[int, int], list[str | None] | bytes]


def test_every_fuzzed_value_is_a_row_a_reject_or_a_tombstone(world, make_topic, make_pipeline):
    seed = draw_seed()
    values = list(Fuzzer(seed).values(VALUES, fuzzed=FUZZED, long=OF_900_KB))
    topic = make_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        topic.produce(*values[partition::PARTITIONS], partition=partition)
    labels = ", ".join(f"'{each}'" for each in LABELS)
    world.execute(f"create type public.mood as enum ({labels})")
    columns = ", ".join(
        f'"{name}" {"public.mood" if type_ == "mood" else type_}' for name, type_ in COLUMNS.items()
    )
    pipeline = make_pipeline(
        topic, value=Json(columns), max_rejects=VALUES, tuning=Tuning(read_timeout="60 seconds")
    )
    batch = world.run(pipeline).batch
    expected, tombstones = outcomes_of(values)
    found = outcomes_in(world, pipeline)
    assert disagreements(values, expected, found) == []
    rows = sum(isinstance(each, list) for each in expected.values())
    counts = (VALUES, rows, len(expected) - rows, tombstones)
    print(f"records, rows, rejects, tombstones: {counts}")  # noqa: T201 - is shown with pytest -s
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == counts
    assert min(counts) > 0
    assert world.is_exact(pipeline)


def outcomes_of(values: list[bytes | None]) -> tuple[Outcomes, int]:
    """What the strict decoder says, and how many tombstones there are."""
    row_of = select_rows(COLUMNS, frozenset(LABELS))
    outcomes: Outcomes = {}
    for number, value in enumerate(values):
        if value is None:
            continue
        offset, partition = divmod(number, PARTITIONS)
        try:
            outcomes[partition, offset] = row_of(value)
        except Refused:
            outcomes[partition, offset] = value
    return outcomes, values.count(None)


def outcomes_in(world: BatchRunner, pipeline: Pipeline) -> Outcomes:
    """What the target and the rejected records hold."""
    quoted = {f'"{name}"': type_ for name, type_ in COLUMNS.items()}
    shown = ", ".join(
        f"{SHOWN.get(type_, '{}::text').format(name)} as {name}" for name, type_ in quoted.items()
    )
    outcomes: Outcomes = {
        (partition, offset): [
            as_expected(type_, each) for type_, each in zip(COLUMNS.values(), row, strict=True)
        ]
        for partition, offset, *row in world.target(pipeline, f"kafka_partition, kafka_offset, {shown}")
    }
    for partition, offset, value in world.rows(
        'select partition, "offset", value from exactbatch.rejected_record'
    ):
        assert (partition, offset) not in outcomes
        outcomes[partition, offset] = bytes(value)
    return outcomes


def disagreements(values: list[bytes | None], expected: Outcomes, found: Outcomes) -> list[Any]:
    """The first records of which the program says something else."""
    where = (at for at in sorted(expected.keys() | found.keys()) if expected.get(at) != found.get(at))
    return [
        (
            values[offset * PARTITIONS + partition],
            expected.get((partition, offset)),
            found.get((partition, offset)),
        )
        for partition, offset in islice(where, 5)
    ]

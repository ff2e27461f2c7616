"""The ledger beside a model: any order of plans, retries, clears, losses and publishes, compared at every step.

The real ledger and the real transactions in Postgres; the log and the staging by the tasks are played. Two
pipelines of one target, because what one of them takes back must not touch what the other has written.

EXACTBATCH_SEED repeats a round, and EXACTBATCH_MODEL_ROUNDS says how many there are; `make test-long` does 30.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from exactbatch.postgres.connection import transaction
from support.environment import LONG, draw_seed
from support.ledger_model.machine import LedgerMachine

ROUNDS = 30 if LONG else 2
# Later examples of a round are mostly variations of an earlier one: many short rounds see more.
EXAMPLES = 10
LENGTH = 50  # steps of an example


# What has to have happened in a run for it to say anything.
OUTCOMES = (
    "advance: planned advance",
    "advance: nothing to process",
    "advance: OffsetsLost",
    "advance: crashed",
    "offsets lost",
    "replay of ranges: planned replay",
    "replay of ranges: ReplayRefused",
    "replay of ranges: OffsetsLost",
    "replay of batches: planned replay",
    "replay of batches: ReplayRefused",
    "replay of batches: OffsetsLost",
    "replay of window: planned replay",
    "replay of window: nothing to process",
    "replay of window: OffsetsLost",
    "run: planned advance",
    "run: planned replay",
    "retry: kept its plan",
    "clear: planned replay",
    "clear: planned replay of a clear",
    "create again: planned replay",
    "superseded: advance",
    "superseded: replay",
    "launch: staged",
    "launch: OffsetsLost",
    "publish: committed: advance",
    "publish: committed: replay",
    "publish: committed before: ",
    "publish: staged rows differ: ",
    "publish: crashed",
    "publish: Fenced, superseded: ",
    "publish: Fenced, overtaken: ",
    "publish: Fenced, stored offset moved: ",
)


@pytest.mark.timeout(1200)  # an example that fails is made smaller first
@pytest.mark.parametrize("lineage", ["record", pytest.param("batch", marks=pytest.mark.slow)])
def test_the_ledger_is_its_model_after_every_step(connection, lineage):
    number = draw_seed()
    rounds = int(os.environ.get("EXACTBATCH_MODEL_ROUNDS") or ROUNDS)
    with transaction(connection) as cursor:
        cursor.execute("set synchronous_commit = off")  # thousands of commits, and none has to survive
    tally: Counter[str] = Counter()
    missing = [*OUTCOMES, *(["publish: Fenced, widening: "] if lineage == "batch" else [])]
    for each in range(number, number + 3 * rounds):
        missing = [what for what in missing if not tally[what]]
        if each >= number + rounds and (not missing or rounds < ROUNDS):
            break  # more rounds only for what chance has left out so far
        print(f"EXACTBATCH_SEED={each}")  # noqa: T201 - the last one is shown when the test fails

        def machine() -> LedgerMachine:
            return LedgerMachine(connection, lineage, tally)

        run_state_machine_as_test(
            seed(each)(machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=LENGTH,
                deadline=None,
                database=None,  # the seed alone says what is tried
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    for what, count in sorted(tally.items()):
        print(f"{count:7} {what}")  # noqa: T201
    assert rounds < ROUNDS or [what for what in missing if not tally[what]] == []

"""Attempts of one task that stage the same range, without and with compiled code."""

import pytest

from exactbatch import Pipeline
from exactbatch.batch.staging.stage import stage
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.batch.staging.task import Staged, StageTask
from exactbatch.compiled.availability import VARIABLE
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.capabilities import TakesCheckedJson
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner


def staging_task_of(world: BatchRunner, pipeline: Pipeline, *, checks_documents: bool = False) -> StageTask:
    """The task of the topic's range, whose staging tables exist; with `checks_documents`, with the second columns of
    documents, for which the target is created."""
    batch_id, columns = world.plan(pipeline), pipeline.value.columns
    tables = StagingTables(batch_id, 7)
    with transaction(world.connection) as cursor:
        if checks_documents:
            writer = find_writer(pipeline.traits)
            assert isinstance(writer, TakesCheckedJson)
            writer.prepare(cursor, columns)
            tables = StagingTables(batch_id, 7, checked=writer.checked_json(cursor, columns))
        ranges = Ledger(world.connection).batches.read_ranges(batch_id)
        create_rejects(cursor, tables)
        create_rows(cursor, tables, pipeline.traits.staged_columns(columns))
    (task,) = stage_tasks(pipeline, pipeline.traits, ranges, {}, tables, world.settings, 1)
    return task


def staged_by_both(task: StageTask, patch: pytest.MonkeyPatch) -> tuple[Staged, Staged]:
    """What the attempts 1, without compiled code, and 2, with compiled code, did."""
    outcomes = []
    for attempt, value in ((1, "off"), (2, "0")):
        patch.setenv(VARIABLE, value)
        (outcome,) = stage([task], attempt)
        assert isinstance(outcome, Staged)
        outcomes.append(outcome)
    return outcomes[0], outcomes[1]

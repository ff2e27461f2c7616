"""Process the batch of a pipeline, or the batches of many tables with one Spark driver, even if one fails."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.batch.staging.shares import Engine
from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate_all_errors
from exactbatch.ledger import ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import find_member
from exactbatch.settings import Settings
from exactbatch.tables import Tables

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch ended: with what was published, or with an error."""

    batch: PlannedBatch
    published: Published | None = None
    error: ExactbatchError | None = None


def process_batches(
    engine: Engine, found: Pipeline | Tables, batches: Sequence[PlannedBatch], settings: Settings
) -> list[Outcome]:
    """Process batches, and the batches of Tables up to `at_a_time` at the same time; return how each ended, in order.

    Each commits in its own transaction, and has its own connections to Postgres: up to the max_connections of its
    pipeline for the tasks, and three for the driver.
    """

    def member(tables: Tables, batch: PlannedBatch) -> Pipeline:
        with ledger_session(settings.postgres, "exactbatch") as connection:
            return find_member(connection, tables, batch)

    def process(batch: PlannedBatch) -> Outcome:
        try:
            with translate_all_errors():
                pipeline = found if isinstance(found, Pipeline) else member(found, batch)
                published = process_batch(engine, pipeline, batch.batch_id, settings, batch.plan_id)
        except ExactbatchError as error:
            if isinstance(found, Tables):  # others go on, and the driver logs the errors of all when it ends
                logger.error("%s: %s: %s", batch.pipeline, type(error).__name__, error)
            return Outcome(batch, error=error)
        logger.info("%s: %s", batch.pipeline, published)
        return Outcome(batch, published)

    if isinstance(found, Pipeline):
        return list(map(process, batches))  # in this thread, which Ctrl-C ends at once
    with ThreadPoolExecutor(max_workers=found.at_a_time) as pool:
        return list(pool.map(process, batches))

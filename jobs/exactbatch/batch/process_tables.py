"""Process the batches of many tables with one Spark driver, several at a time, even if one fails."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.batch.staging.engine import Engine
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.translation import translate_all_errors
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.tables import Tables

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberBatch:
    """A planned batch of a member; without a plan ID, the batch that has the number."""

    pipeline: Pipeline
    batch_id: int
    plan_id: UUID | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the batch of a member ended: with what was published, or with an error."""

    batch: MemberBatch
    published: Published | None = None
    error: ExactbatchError | None = None


def member_batches(
    tables: Tables, planned: Iterable[tuple[str, int, str]]
) -> tuple[list[MemberBatch], dict[str, ExactbatchError]]:
    """Return the batches of planned (topic, batch ID, plan ID), and errors by the names of members.

    A topic may have lost its member since it was planned; that does not stop the others.
    """
    batches, errors = list[MemberBatch](), dict[str, ExactbatchError]()
    for topic, batch_id, plan_id in planned:
        try:
            pipeline = tables.member(topic)
            if pipeline is None:
                raise ConfigurationError(
                    f"batch {batch_id} loads the topic {topic!r}, which {tables.name!r} now leaves out. Clear "
                    f"plan_batch with its downstream tasks."
                )
        except ConfigurationError as error:
            name = tables.name_of(topic)
            logger.error("%s: %s: %s", name, type(error).__name__, error)
            errors[name] = error
        else:
            batches.append(MemberBatch(pipeline, batch_id, UUID(plan_id)))
    return batches, errors


def process_tables(
    engine: Engine, batches: Sequence[MemberBatch], settings: Settings, *, at_a_time: int
) -> list[Outcome]:
    """Process the batches, up to `at_a_time` of them at the same time; return how each ended, in order.

    Each commits in its own transaction, and has its own connections to Postgres: up to the max_connections of its
    pipeline for the tasks, and three for the driver.
    """

    def process(batch: MemberBatch) -> Outcome:
        try:
            with translate_all_errors():
                published = process_batch(engine, batch.pipeline, batch.batch_id, settings, batch.plan_id)
        except ExactbatchError as error:
            logger.error("%s: %s: %s", batch.pipeline.name, type(error).__name__, error)
            return Outcome(batch, error=error)
        logger.info("%s: %s", batch.pipeline.name, published)
        return Outcome(batch, published)

    with ThreadPoolExecutor(max_workers=at_a_time) as pool:
        return list(pool.map(process, batches))

"""Begin a new epoch: the positions of the source began again, and its changes from here on are the newer ones."""

from collections.abc import Mapping
from datetime import datetime

from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction


def preview_epoch(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    at: datetime | None = None,
) -> dict[TopicPartition, int]:
    """Return what begin_epoch() would return, without writing or locking anything. Raises what it raises."""
    with transaction(connection):
        return _merged(_find_begins(Ledger(connection), broker, pipeline, starts, at, lock=False))


def begin_epoch(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    at: datetime | None = None,
) -> dict[TopicPartition, int]:
    """Let changes from an offset of each partition on count as newer than all before; return these offsets in order.

    `starts` has the offsets, and `at` the Kafka timestamp at which the positions began again. A partition whose records
    are all processed need not be named: its epoch begins at the stored offset, and never before it. Pipelines that
    share the target begin theirs with it.

    Raises ConfigurationError if the version of the pipeline is no position, or an offset is missing or processed.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        begun = _find_begins(ledger, broker, pipeline, starts, at, lock=True)
        epoch = len(ledger.registry.read_epochs(pipeline)) + 1
        for name, begins in begun.items():
            ledger.registry.begin_epoch(name, epoch, begins)
    return _merged(begun)


def _find_begins(
    ledger: Ledger,
    broker: KafkaBroker,
    pipeline: Pipeline,
    starts: Mapping[TopicPartition, int] | None,
    at: datetime | None,
    *,
    lock: bool,
) -> dict[str, dict[TopicPartition, int]]:
    """Return where the epoch of each pipeline that writes the target begins, by its name; `lock` the pipeline."""
    if not pipeline.traits.position_columns:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} orders no changes by the positions of a source: only Debezium(…, version=…) "
            f"with an Upsert that has its columns as version does. There is no epoch to begin."
        )
    if lock:
        ledger.registry.lock(pipeline)
    else:
        ledger.registry.check(pipeline)
    found: dict[str, dict[TopicPartition, int]] = {}
    for name in sorted({pipeline.name, *ledger.registry.find_sharing(pipeline)}):
        offsets = ledger.plans.read_stored_offsets(ledger.registry.read(name))
        stored = {each.topic_partition: each.next_offset for each in offsets}
        partitions = broker.known_partitions(sorted({topic for topic, _ in stored}))
        times = broker.offsets_at(partitions, at) if at is not None else {}
        found[name] = {
            each.topic_partition: _begin(
                each.topic_partition,
                stored.get(each.topic_partition, each.earliest),
                each.high_watermark,
                times if at is not None else dict(starts or {}),
                is_time=at is not None,
            )
            for each in partitions
        }
    if unknown := sorted({*(starts or {})} - {*_merged(found)}):
        topic, partition = unknown[0]
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} has no partition {topic}[{partition}]. Nothing was written."
        )
    return found


def _merged(begins: Mapping[str, Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    return dict(sorted((place, offset) for each in begins.values() for place, offset in each.items()))


def _begin(
    partition: TopicPartition, stored: int, end: int, given: Mapping[TopicPartition, int], *, is_time: bool
) -> int:
    begin = given.get(partition)
    if is_time:
        return stored if begin is None else max(begin, stored)
    where = f"{partition[0]}[{partition[1]}]"
    if begin is None:
        if stored < end:
            raise ConfigurationError(
                f"{where}: the records from offset {stored} to {end} are not processed yet, and nothing says which of "
                f"them are of the new epoch. Nothing was written. Name the first one, --from "
                f"{partition[0]}:{partition[1]}:{stored}, or give --start."
            )
        return stored
    if not stored <= begin <= end:
        raise ConfigurationError(
            f"{where}: an epoch can begin at an offset from {stored}, which is stored, to {end}, the end of the log; "
            f"found {begin}. Nothing was written."
        )
    return begin

"""The topics and tables of a batch in the classes of OpenLineage, under the names that lineage tools give them.

Only imported when Airflow's provider for it asks. See https://openlineage.io/docs/spec/naming.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    OutputDatasetFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
)
from psycopg2.extensions import parse_dsn

from exactbatch.ledger import Batch, Ledger, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings

_SHOWN: Final = 100  # ranges of a batch, over all of its topics: a batch may have thousands
_KAFKA_PORT: Final = "9092"
_POSTGRES_PORT: Final = "5432"
_REJECTS: Final = ("exactbatch", "rejected_record")
OFFSET_RANGES: Final = "exactbatch_offsetRanges"
SCHEMA_URL: Final = (
    "urn:exactbatch:openlineage:1-0-0:OffsetRangesInputDatasetFacet.json#/$defs/OffsetRangesInputDatasetFacet"
)


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What a batch reads from one topic: its first ranges, and the totals of all.

    `records` is None before the commit.
    """

    topic: str
    ranges: int
    offsets: int
    records: int | None
    first: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a batch writes to; `rows` is None before the commit, and if the ledger has no number for it."""

    name: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class BatchDatasets:
    """A batch with its topics, in the namespace `kafka`, and its tables, in the namespace `postgres`."""

    batch: Batch
    kafka: str
    topics: tuple[TopicRanges, ...]
    postgres: str
    tables: tuple[Table, ...]


def kafka_namespace(bootstrap_servers: str) -> str:
    """Return the namespace of a cluster's topics: its first bootstrap server, without protocol and user."""
    server = bootstrap_servers.split(",")[0].strip().rpartition("://")[2].rpartition("@")[2]
    has_port = ":" in server.rpartition("]")[2]
    return f"kafka://{server}" if has_port else f"kafka://{server}:{_KAFKA_PORT}"


def postgres_namespace(dsn: Mapping[str, Any]) -> str:
    """Return the namespace of a server's tables from libpq's parameters: the first host, without user and password.

    The host that a session has reached is no name: after a failover, the tables are still the same.
    """
    host = str(dsn.get("host") or dsn.get("hostaddr") or "").split(",")[0]
    port = str(dsn.get("port") or "").split(",")[0] or _POSTGRES_PORT
    if not host or host[0] in "/@":  # the socket of a server on this machine
        host = "localhost"
    return f"postgres://[{host}]:{port}" if ":" in host else f"postgres://{host}:{port}"


def topic_ranges(ranges: Iterable[tuple[OffsetRange, int | None]]) -> tuple[TopicRanges, ...]:
    """Return what a batch reads by topic, from its ranges and the numbers of their records."""
    by_topic: dict[str, list[tuple[OffsetRange, int | None]]] = defaultdict(list)
    for each in ranges:
        by_topic[each[0].topic].append(each)
    shown = max(1, _SHOWN // max(1, len(by_topic)))
    return tuple(
        TopicRanges(
            topic=topic,
            ranges=len(of_topic),
            offsets=sum(len(range_) for range_, _ in of_topic),
            records=_sum([records for _, records in of_topic]),
            first=tuple(range_ for range_, _ in of_topic[:shown]),
        )
        for topic, of_topic in sorted(by_topic.items())
    )


def tables(batch: Batch, database: str, targets: Sequence[tuple[str, str]]) -> tuple[Table, ...]:
    """Return the tables that a batch writes to: its targets and, if it has rejects, the table that keeps them.

    The batch's number of rows is the number of the first target's rows.
    """
    first, *others = (".".join((database, *target)) for target in targets)
    written = [Table(first, batch.rows), *(Table(other, None) for other in others)]
    if batch.rejected:
        written.append(Table(".".join((database, *_REJECTS)), batch.rejected))
    return tuple(written)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@attr.define
class FirstRange:
    """A range of a batch: offsets [fromOffset, untilOffset) of a partition."""

    partition: int
    fromOffset: int
    untilOffset: int


@attr.define
class OffsetRangesInputDatasetFacet(InputDatasetFacet):
    """What a batch reads from a topic. docs/openlineage/OffsetRangesInputDatasetFacet.json is its schema."""

    batchId: int
    planId: str
    kind: str
    ranges: int
    offsets: int
    firstRanges: list[FirstRange]

    # Airflow would search these for secrets; they are numbers, and the identity of the batch.
    _additional_skip_redact: ClassVar[list[str]] = [
        "batchId",
        "planId",
        "kind",
        "ranges",
        "offsets",
        "firstRanges",
    ]

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA_URL


def load_lineage(settings: Settings, planned: PlannedBatch) -> OperatorLineage[Any, Any]:
    """Read from the ledger what a batch reads and writes. Raises BatchLost, and the errors of ledger_session()."""
    with ledger_session(settings.postgres, "exactbatch lineage") as connection, transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batches.read(planned.batch_id, planned.plan_id)
        datasets = BatchDatasets(
            batch=batch,
            kafka=kafka_namespace(str(settings.kafka["bootstrap.servers"])),
            topics=topic_ranges(ledger.batches.read_ranges_with_records(batch.batch_id)),
            postgres=postgres_namespace(parse_dsn(settings.postgres)),
            tables=tables(batch, connection.info.dbname, ledger.registry.read(batch.pipeline).targets),
        )
    return operator_lineage(datasets)


def operator_lineage(datasets: BatchDatasets) -> OperatorLineage[Any, Any]:
    """Return the topics of a batch as inputs, and its tables as outputs."""
    return OperatorLineage(
        inputs=[_input(datasets, topic) for topic in datasets.topics],
        outputs=[_output(datasets, table) for table in datasets.tables],
    )


def _input(datasets: BatchDatasets, topic: TopicRanges) -> InputDataset:
    batch = datasets.batch
    facets: dict[str, InputDatasetFacet] = {
        OFFSET_RANGES: OffsetRangesInputDatasetFacet(
            batchId=batch.batch_id,
            planId=str(batch.plan_id),
            kind=batch.kind,
            ranges=topic.ranges,
            offsets=topic.offsets,
            firstRanges=[
                FirstRange(each.partition, each.from_offset, each.until_offset) for each in topic.first
            ],
        )
    }
    if topic.records is not None:
        facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=topic.records
        )
    return InputDataset(namespace=datasets.kafka, name=topic.topic, inputFacets=facets)


def _output(datasets: BatchDatasets, table: Table) -> OutputDataset:
    facets: dict[str, OutputDatasetFacet] = {}
    if table.rows is not None:
        facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=table.rows
        )
    return OutputDataset(namespace=datasets.postgres, name=table.name, outputFacets=facets)

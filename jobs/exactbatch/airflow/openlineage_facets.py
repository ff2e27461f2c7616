"""The datasets of a batch in the classes of OpenLineage. Only imported when Airflow's provider for it asks."""

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

from exactbatch.ledger import Ledger, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.operations.datasets import (
    BatchDatasets,
    Table,
    TopicRanges,
    kafka_namespace,
    postgres_namespace,
    tables,
    topic_ranges,
)
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings

OFFSET_RANGES: Final = "exactbatch_offsetRanges"
SCHEMA_URL: Final = (
    "urn:exactbatch:openlineage:1-0-0:OffsetRangesInputDatasetFacet.json#/$defs/OffsetRangesInputDatasetFacet"
)


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

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

from exactbatch.operations.datasets import BatchDatasets, Table, TopicRanges

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

"""The datasets of a batch in OpenLineage: names without secrets, and events that stay small."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.utils.state import TaskInstanceState
from openlineage.client.serde import Serde

from exactbatch.airflow import Connections
from exactbatch.airflow.connect_operator import ProcessBatchOnServerOperator
from exactbatch.airflow.openlineage_facets import (
    OFFSET_RANGES,
    BatchDatasets,
    kafka_namespace,
    operator_lineage,
    postgres_namespace,
    tables,
    topic_ranges,
)
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.airflow.versions import AirflowFailException
from exactbatch.ledger import Batch
from exactbatch.offsets import OffsetRange

SCHEMA = Path(__file__).parents[2] / "docs" / "openlineage" / "OffsetRangesInputDatasetFacet.json"
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
PLANNED = Batch(
    batch_id=7, plan_id=UUID(int=7), pipeline="p", kind="advance", origin="schedule", dag_id="p", run_id="r",
    generation=0, clear_number=0, run_started_at=NOW, status="planned", records=None, rows=None, rejected=None,
    tombstones=None, dropped=None, planned_at=NOW, committed_at=None, stages=None, application_id=None,
)  # fmt: skip
COMMITTED = replace(
    PLANNED, status="committed", records=6, rows=5, rejected=1, tombstones=0, dropped=0, committed_at=NOW
)


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("one:9093, two:9092", "kafka://one:9093"),
        ("one", "kafka://one:9092"),
        ("SASL_SSL://me:s3cret@one:9093", "kafka://one:9093"),
        ("[::1]:9093", "kafka://[::1]:9093"),
        ("[::1]", "kafka://[::1]:9092"),
    ],
)
def test_a_cluster_is_named_by_its_first_server(servers, namespace):
    assert kafka_namespace(servers) == namespace


@pytest.mark.parametrize(
    ("dsn", "namespace"),
    [
        (
            {"host": "one,two", "port": "6432,5432", "user": "me", "password": "s3cret"},
            "postgres://one:6432",
        ),
        ({"hostaddr": "::1"}, "postgres://[::1]:5432"),
        ({"host": "/run/postgresql"}, "postgres://localhost:5432"),
        ({"port": "5433"}, "postgres://localhost:5433"),
    ],
)
def test_a_server_is_named_by_its_first_host_and_port(dsn, namespace):
    assert postgres_namespace(dsn) == namespace


def ranges(topic: str, partitions: int, records: int | None = None) -> list[tuple[OffsetRange, int | None]]:
    return [(OffsetRange(topic, each, 5, 8, UUID(int=1)), records) for each in range(partitions)]


def event(batch: Batch, *read: tuple[OffsetRange, int | None]) -> dict[str, Any]:
    """The parts of an event that describe a batch, as they are sent."""
    lineage = operator_lineage(
        BatchDatasets(
            batch=batch,
            kafka="kafka://k:9092",
            topics=topic_ranges(read),
            postgres="postgres://p:5432",
            tables=tables(batch, "db", [("public", "Odd Name")]),
        )
    )
    sent: dict[str, Any] = json.loads(Serde.to_json(lineage))
    return sent


def facet(sent: dict[str, Any], topic: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = sent["inputs"][topic]["inputFacets"][OFFSET_RANGES]
    return found


def test_a_planned_batch_has_ranges_and_no_counts():
    sent = event(PLANNED, *ranges("a", 2), *ranges("b", 1))
    assert [(each["namespace"], each["name"]) for each in sent["inputs"]] == [
        ("kafka://k:9092", "a"),
        ("kafka://k:9092", "b"),
    ]
    assert set(sent["inputs"][0]["inputFacets"]) == {OFFSET_RANGES}
    (output,) = sent["outputs"]
    assert (output["namespace"], output["name"]) == ("postgres://p:5432", "db.public.Odd Name")
    assert not output.get("outputFacets")
    assert facet(sent)["firstRanges"] == [
        {"partition": 0, "fromOffset": 5, "untilOffset": 8},
        {"partition": 1, "fromOffset": 5, "untilOffset": 8},
    ]


def test_a_committed_batch_counts_records_by_topic_and_rows_and_rejects_by_table():
    sent = event(COMMITTED, *ranges("a", 2, 2), *ranges("b", 1, 2))
    assert [each["inputFacets"]["inputStatistics"]["rowCount"] for each in sent["inputs"]] == [4, 2]
    assert {
        each["name"]: each["outputFacets"]["outputStatistics"]["rowCount"] for each in sent["outputs"]
    } == {
        "db.public.Odd Name": 5,
        "db.exactbatch.rejected_record": 1,
    }
    without = event(replace(COMMITTED, rejected=0), *ranges("a", 1, 6))
    assert [each["name"] for each in without["outputs"]] == ["db.public.Odd Name"]


def test_all_targets_of_a_batch_are_written_and_only_the_first_has_its_rows():
    targets = [("public", "customer"), ("raw", "customer_event")]
    written = tables(COMMITTED, "db", targets)
    assert [(each.name, each.rows) for each in written] == [
        ("db.public.customer", 5),
        ("db.raw.customer_event", None),
        ("db.exactbatch.rejected_record", 1),
    ]
    assert [each.rows for each in tables(PLANNED, "db", targets)] == [None, None]


@pytest.mark.parametrize("topics", [1, 3, 50])
def test_an_event_of_ten_thousand_partitions_stays_small(topics):
    read = [each for topic in range(topics) for each in ranges(f"topic {topic:02}", 10_000 // topics)]
    sent = event(PLANNED, *read)
    assert sum(facet(sent, topic)["ranges"] for topic in range(topics)) == len(read)
    assert facet(sent)["offsets"] == 3 * facet(sent)["ranges"]
    shown = [len(facet(sent, topic)["firstRanges"]) for topic in range(topics)]
    assert 99 <= sum(shown) <= 100
    assert min(shown) == max(shown)


def test_the_facet_is_what_its_schema_describes():
    schema = json.loads(SCHEMA.read_text())
    part = {"$ref": "#/$defs/OffsetRangesInputDatasetFacet", "$defs": schema["$defs"]}
    sent = facet(event(PLANNED, *ranges("a", 2)))
    jsonschema.Draft202012Validator(part).validate(sent)
    assert sent["_schemaURL"] == f"{schema['$id']}#/$defs/OffsetRangesInputDatasetFacet"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(part).validate({**sent, "user": "me"})


def test_the_provider_survives_an_operator_without_a_batch():
    operator = ProcessBatchOnServerOperator(
        task_id="process_batch", connections=Connections(), pipeline="x:x", batches=""
    )
    with pytest.raises(AirflowFailException, match="plan_batch has left no batch"):
        operator.get_openlineage_facets_on_start()
    run = SimpleNamespace(run_id="r")
    lineage = ExtractorManager().extract_metadata(run, operator, TaskInstanceState.RUNNING, SimpleNamespace())
    assert (lineage.inputs, lineage.outputs) == ([], [])


def test_a_task_of_many_tables_sends_no_datasets():
    operator = ProcessBatchOperator(
        task_id="process_batch",
        connections=Connections(),
        pipeline="x:x",
        batches='["x.a:1:"]',
        is_tables=True,
    )
    lineage = operator.get_openlineage_facets_on_start()
    assert (lineage.inputs, lineage.outputs) == ([], [])

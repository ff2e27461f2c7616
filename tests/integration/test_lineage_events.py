"""What Airflow's provider for OpenLineage extracts from the operators, with a real ledger."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.utils.state import TaskInstanceState
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Append, Upsert
from exactbatch.airflow import Connections
from exactbatch.airflow.connect_operator import ProcessBatchOnServerOperator
from exactbatch.airflow.openlineage_facets import OFFSET_RANGES
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.topics import record


def extracted(operator: Any, state: TaskInstanceState) -> Any:
    """What the provider takes from an operator around a task."""
    run = SimpleNamespace(run_id="r")
    return ExtractorManager().extract_metadata(run, operator, state, SimpleNamespace())


@pytest.mark.parametrize("operator_type", [ProcessBatchOperator, ProcessBatchOnServerOperator])
def test_provider_extracts_ranges_before_a_batch_and_counts_after_it(
    connection, settings, make_topic, make_pipeline, monkeypatch, operator_type
):
    topic = make_topic(2)
    topic.produce(*map(record, range(3)))
    pipeline = make_pipeline(topic, sink=Append('sales."Odd Name"'))
    secret = Settings(
        kafka={**settings.kafka, "ssl.key.password": "s3cret"},
        postgres=make_dsn(settings.postgres, sslpassword="s3cret"),
    )
    monkeypatch.setattr(Connections, "settings", lambda _: secret)
    batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="schedule")
    assert batch_id is not None
    operator = operator_type(
        task_id="process_batch", connections=Connections(), pipeline="x:x", batches=f'["x:{batch_id}:"]'
    )

    before = extracted(operator, TaskInstanceState.RUNNING)
    (source,), (target,) = before.inputs, before.outputs
    assert (source.namespace, source.name) == (f"kafka://{settings.kafka['bootstrap.servers']}", topic.name)
    server = parse_dsn(settings.postgres)
    assert target.namespace == f"postgres://{server['host']}:{server['port']}"
    assert target.name == f"{server['dbname']}.sales.Odd Name"
    assert source.inputFacets[OFFSET_RANGES].offsets == 3
    assert (set(source.inputFacets), target.outputFacets) == ({OFFSET_RANGES}, {})
    assert "s3cret" not in str(before)

    with transaction(connection):
        ledger = Ledger(connection)
        counts = [(range_, len(range_)) for range_ in ledger.batches.read_ranges(batch_id)]
        ledger.batches.mark_committed(
            ledger.batches.read(batch_id), rows=2, rejected=1, tombstones=0, records=counts
        )
    after = extracted(operator, TaskInstanceState.SUCCESS)
    assert after.inputs[0].inputFacets["inputStatistics"].rowCount == 3
    assert [each.outputFacets["outputStatistics"].rowCount for each in after.outputs] == [2, 1]
    assert after.outputs[1].name == f"{server['dbname']}.exactbatch.rejected_record"


def test_all_targets_of_a_batch_are_outputs(connection, settings, make_topic, make_pipeline, monkeypatch):
    topic = make_topic()
    topic.produce(record(1))
    both = [Append("raw.event"), Upsert('sales."Odd Name"', key=("id",))]
    pipeline = make_pipeline(topic, sink=both)
    monkeypatch.setattr(Connections, "settings", lambda _: settings)
    batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="schedule")
    operator = ProcessBatchOperator(
        task_id="process_batch", connections=Connections(), pipeline="x:x", batches=f'["x:{batch_id}:"]'
    )
    database = connection.info.dbname
    outputs = [each.name for each in extracted(operator, TaskInstanceState.RUNNING).outputs]
    assert outputs == [f"{database}.sales.Odd Name", f"{database}.raw.event"]

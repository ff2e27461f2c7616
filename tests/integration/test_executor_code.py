"""Executors that run other code of exactbatch than their driver decode nothing."""

import pytest

from exactbatch.batch.spark import executors
from exactbatch.batch.transform import decoded_records
from exactbatch.errors import ConfigurationError
from support.topics import record

LINEAGE = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"
ROWS = {
    "decoded": {},
    "decoded and committed range by range": {"commit": "partition"},
    "transformed in one pass": {"transform": f"select id + 1 as id, {LINEAGE} from records"},
    "transformed": {"transform": f"select id, {LINEAGE} from records distribute by id"},
}


@pytest.mark.parametrize("changes", ROWS.values(), ids=ROWS.keys())
def test_executors_with_other_code_are_refused(world, make_topic, make_pipeline, monkeypatch, changes):
    topic = make_topic()
    topic.produce(*map(record, range(3)))
    pipeline = make_pipeline(topic, **changes)
    with monkeypatch.context() as driver:
        for module in (executors, decoded_records):
            driver.setattr(module, "code_identity", lambda: "99.0 (0)")
        batch_id = world.plan(pipeline)
        with pytest.raises(
            ConfigurationError, match=r"the executors run exactbatch .*, and the driver 99\.0 \(0\): "
        ):
            world.process(pipeline, batch_id)
    assert world.staging() == []
    world.process(pipeline, batch_id)
    assert world.is_exact(pipeline)

"""A broker that dies while results are sent to it loses none, and has none twice."""

import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch import Append, Json, Pipeline, ToTopic
from exactbatch.errors import RetryableError
from exactbatch.forwarding import forward as forwarding
from exactbatch.forwarding.forward import forward_results
from exactbatch.local import LocalStack
from exactbatch.settings import Settings
from support.forwarded import check_once_in_order, committed, standing_rows
from support.staged_batches import Batches
from support.topics import await_leaders

pytestmark = pytest.mark.slow


def test_a_broker_that_is_killed_in_the_middle_has_each_result_once(
    own_stack: LocalStack, connection, database, monkeypatch
):
    """In the middle of a transaction, before its commit, and at any time; with the same forwarder, or the next one."""
    admin = AdminClient(dict(own_stack.kafka_properties))
    admin.create_topics([NewTopic("late", 2, 1)])["late"].result(30)
    await_leaders(admin, "late", 2)
    settings = Settings(kafka=dict(own_stack.kafka_properties), postgres=database)
    forward = ToTopic("late", keyed_by=("carrier",), key_format="text")
    value = Json("carrier text, flight int")
    pipeline = Pipeline(name="p", topics=("t",), value=value, sink=Append("public.late"), forward=forward)
    batches = Batches(connection, pipeline)
    monkeypatch.setattr(forwarding, "_RESULTS", 100)
    produced = 0
    for moment in ("forward.after_produce", "forward.before_commit", "forward.after_begin"):
        batches.run(*(("ABCD"[each % 4], each) for each in range(produced, produced + 500)))
        produced += 500
        killed = threading.Event()

        def kill_once(name: str, at: str = moment, done: threading.Event = killed) -> None:
            if name == at and not done.is_set():
                done.set()
                own_stack.broker.kill()
                threading.Timer(2, own_stack.broker.start).start()

        monkeypatch.setattr("exactbatch.forwarding.producer.failpoint", kill_once)
        for _ in range(20):
            try:
                forward_results(connection, settings, pipeline)
                break
            except RetryableError:
                continue
        assert killed.is_set()
    messages = committed(settings.kafka, "late")
    check_once_in_order(messages, produced)
    assert sum(standing_rows(messages).values()) == produced

"""What `exactbatch local send` does where a broker does not take records, or not as fast as they are read."""

import pytest

from exactbatch.local import LocalStackError
from exactbatch.local.topics import send


def test_records_that_no_broker_confirms_are_counted():
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300}
    with pytest.raises(LocalStackError) as raised:
        send(nowhere, "orders", [b"a", b"b", b"c"])
    assert str(raised.value).startswith(
        "the broker confirmed 0 of 3 records for the topic orders: Local: Message timed out. `exactbatch local status`"
    )


def test_a_record_that_the_broker_refuses_ends_it():
    # The topic of librdkafka's own broker has four partitions.
    simulated = {"test.mock.num.brokers": 1, "queue.buffering.max.kbytes": 1}
    with pytest.raises(
        LocalStackError, match="the broker confirmed .* of 5,000 records .*: Local: Unknown partition"
    ):
        send(simulated, "orders", [b"x" * 100] * 5_000, partitions=5)


def test_records_wait_for_room_in_the_queue():
    send({"test.mock.num.brokers": 1, "queue.buffering.max.kbytes": 1}, "orders", [b"x" * 100] * 1_000)

"""How far a read fetches ahead: what it fetches beyond the end of a range is wasted."""

from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException

from exactbatch.errors import ReadFailed
from exactbatch.kafka import reader
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange


@pytest.mark.parametrize(
    ("offsets", "properties", "records"),
    [
        (100, {}, 1_000),
        (250_000, {}, 31_250),
        (1_000_000_000, {}, 1_000_000),
        (250_000, {"queued.min.messages": 100}, 100),
    ],
    ids=["short", "a piece", "long", "set by the connection"],
)
def test_a_read_fetches_ahead_an_eighth_of_its_range(monkeypatch, offsets, properties, records):
    configs: list[Any] = []

    def refuse(config: Any, *_: Any, **__: Any) -> None:
        configs.append(config)
        raise KafkaException(KafkaError(KafkaError._FAIL))

    monkeypatch.setattr(reader, "open_consumer", refuse)
    range_ = OffsetRange("t", 0, 0, offsets, UUID(int=0))
    with pytest.raises(ReadFailed):
        next(read_range(range_, properties, leader_epoch=None, timeout=1))
    assert configs[0]["queued.min.messages"] == records

"""Plan and process replays."""

from typing import Any

import pytest

from exactbatch import Pipeline
from exactbatch.batch.publishing.publish import Published
from exactbatch.errors import ExactbatchError
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.topics import Topic


def ranges(*asked: tuple[int, int], partition: int = 0, topic: Topic) -> ReplayRequest:
    return ReplayRequest(ranges=tuple(RequestedRange(topic.name, partition, *each) for each in asked))


class Replays:
    """Plans and processes replays of one test."""

    def __init__(self, world: BatchRunner) -> None:
        self.world = world

    def plan(self, pipeline: Pipeline, request: ReplayRequest, **more: Any) -> int | None:
        world = self.world
        return freeze_replay(world.connection, world.log, pipeline, request, origin="cli", **more).batch_id

    def run(self, pipeline: Pipeline, request: ReplayRequest) -> Published:
        batch_id = self.plan(pipeline, request)
        assert batch_id is not None
        return self.world.process(pipeline, batch_id)

    def refused(self, expected: type[ExactbatchError], pipeline: Pipeline, request: ReplayRequest) -> str:
        """The message with which planning ends; nothing is written."""
        before = self.world.rows("select count(*) from exactbatch.batch")
        with pytest.raises(expected) as caught:
            self.plan(pipeline, request)
        assert self.world.rows("select count(*) from exactbatch.batch") == before
        return str(caught.value)

    def coverage(self, pipeline: Pipeline) -> list[tuple[int, int, int, int | None]]:
        with transaction(self.world.connection):
            found = Ledger(self.world.connection).coverage.read_all(pipeline)
        return [(each.partition, each.from_offset, each.until_offset, each.batch_id) for each in found]

    def stored(self, pipeline: Pipeline) -> list[int]:
        with transaction(self.world.connection):
            return [
                each.next_offset for each in Ledger(self.world.connection).plans.read_stored_offsets(pipeline)
            ]

    def checksum(self, pipeline: Pipeline, where: str) -> str:
        table = find_writer(pipeline.traits).tables[-1].identifier.as_string(self.world.connection)
        (row,) = self.world.rows(
            f"select md5(string_agg(t::text, '|' order by t::text)) from {table} t where {where}"
        )
        return str(row[0])

    def planned(self, batch_id: int | None) -> list[tuple[int, int, int]]:
        assert batch_id is not None
        with transaction(self.world.connection):
            found = Ledger(self.world.connection).batches.read_ranges(batch_id)
        return [(each.partition, each.from_offset, each.until_offset) for each in found]

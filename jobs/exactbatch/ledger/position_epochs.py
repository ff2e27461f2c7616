"""Epochs of positions: where the positions of a source begin again."""

from collections.abc import Mapping, Sequence
from typing import Final

from exactbatch.ledger.registration import Registration
from exactbatch.ledger.statements import load_queries
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("position_epochs")


class PositionEpochs(Registration):
    """The rows of exactbatch.position_epoch."""

    def position_epochs(self, pipeline: Pipeline) -> Sequence[Mapping[TopicPartition, int]]:
        """Return for each epoch at which offset of each partition it begins; at 0 in a partition that is not named.

        There are as many epochs as any pipeline with the same target has: their changes are compared.
        """
        names = [pipeline.name, *self.sharing(pipeline)]
        rows = list(_QUERIES.position_epochs(self._connection, pipelines=names))
        epochs: list[dict[TopicPartition, int]] = [
            {} for _ in range(max((row.epoch for row in rows), default=0))
        ]
        for row in rows:
            if row.pipeline == pipeline.name:
                epochs[row.epoch - 1][row.topic, row.partition] = row.from_offset
        return epochs

    def with_epochs(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline as its batches run, with the epochs of positions in its sink."""
        if not (epochs := self.position_epochs(pipeline)):
            return pipeline
        return pipeline.for_part(pipeline.sink.with_epochs(epochs))

    def begin_epoch(self, name: str, epoch: int, starts: Mapping[TopicPartition, int]) -> None:
        """Begin an epoch of a pipeline at an offset of each partition."""
        _QUERIES.insert_position_epoch(
            self._connection,
            pipeline=name,
            epoch=epoch,
            topic=[topic for topic, _ in starts],
            partition=[partition for _, partition in starts],
            from_offset=list(starts.values()),
        )

"""Find the writer that stores the rows of a sink."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from exactbatch.offsets import TopicPartition
from exactbatch.sinks.aggregate.spec import Aggregate
from exactbatch.sinks.aggregate.writer import AggregateWriter
from exactbatch.sinks.append import Append
from exactbatch.sinks.append_writer import build_append_writer
from exactbatch.sinks.several_writer import SeveralWriter
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.upsert.spec import Upsert
from exactbatch.sinks.upsert.with_history import HistoryWriter
from exactbatch.sinks.upsert.without_history import LatestWriter
from exactbatch.sinks.writer import SinkWriter


def _build_upsert_writer(sink: Upsert, traits: SinkTraits) -> HistoryWriter | LatestWriter:
    return HistoryWriter(sink, traits) if sink.history else LatestWriter(sink, traits)


# What builds the writer of a sink from it and its traits.
WRITERS: Final[Mapping[type, Callable[[Any, SinkTraits], SinkWriter]]] = {
    Append: build_append_writer,
    Upsert: _build_upsert_writer,
    Aggregate: AggregateWriter,
}


def find_writer(traits: SinkTraits, epochs: Sequence[Mapping[TopicPartition, int]] = ()) -> SinkWriter:
    """Return the writer of a pipeline's sink, whose traits these are.

    `epochs` are the epochs of its positions in the ledger. Whatever writes or compares changes needs them.
    """
    traits = traits.with_epochs(epochs)
    parts = tuple(WRITERS[type(part.sink)](part.sink, part) for part in traits.parts)
    return parts[0] if len(parts) == 1 else SeveralWriter(parts, traits)

"""The writer of a sink without a pipeline."""

from typing import Any

from exactbatch.sinks import FormatFacts, Sink
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer


def writer_of(sink: Sink, facts: FormatFacts = FormatFacts()) -> SinkWriter:  # noqa: B008  # frozen
    """Return the writer of a sink, for a format of which these facts are known."""
    return find_writer(sink.find_traits(facts))


def table_of(sink: Sink, connection: Any) -> str:
    """Return the target of a sink as statements write it."""
    return writer_of(sink).tables[-1].identifier.as_string(connection)

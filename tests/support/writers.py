"""The writer of a sink without a pipeline."""

from collections.abc import Sequence
from typing import Any

from exactbatch.sinks import FormatFacts, Route, Sink
from exactbatch.sinks.several import find_traits
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer


def writer_of(sink: Sink | Sequence[Sink] | Route, facts: FormatFacts = FormatFacts()) -> SinkWriter:  # noqa: B008  # frozen
    """Return the writer of a sink, or of several, for a format of which these facts are known."""
    return find_writer(find_traits(sink, facts))


def table_of(sink: Sink | Sequence[Sink] | Route, connection: Any) -> str:
    """Return the target of a sink as statements write it."""
    return writer_of(sink).tables[-1].identifier.as_string(connection)

"""The streams of results that go back to Kafka, and the outbox of each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from exactbatch.errors import ConfigurationError, Fenced, NotRegistered
from exactbatch.ledger.row_types import Kind, Stream
from exactbatch.ledger.statements import Store, load_queries, read_row, read_rows
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("streams")


@dataclass(frozen=True, slots=True)
class PendingResult:
    """A row of the outbox, with the plan and the kind of its batch; both None if the ledger lacks the batch."""

    sequence: int
    batch_id: int
    plan_id: UUID | None
    kind: Kind | None
    change: str
    key: bytes | None
    value: bytes | None

    def __post_init__(self) -> None:
        for name in ("key", "value"):  # psycopg2 returns views of memory
            if (content := getattr(self, name)) is not None:
                object.__setattr__(self, name, bytes(content))


class Streams(Store):
    """The rows of exactbatch.forward and exactbatch.outbox."""

    def is_registered(self, pipeline: Pipeline) -> bool:
        """True if a pipeline forwards to the topic that it is registered with, or to none."""
        return _find_topic(self.read(pipeline.name)) == _declared_topic(pipeline)

    def register(self, pipeline: Pipeline) -> None:
        """Begin the stream that a pipeline declares, and end the one that it no longer does.

        Raises ConfigurationError if the previous stream still has results to send.
        """
        topic = _declared_topic(pipeline)
        registered = self.read(pipeline.name)
        if _find_topic(registered) == topic:
            return
        if registered is not None and not _QUERIES.delete_stream(self._connection, pipeline=pipeline.name):
            raise ConfigurationError(
                f"pipeline {pipeline.name!r}: {registered.unsent} results are waiting for the topic "
                f"{registered.topic!r}, to which the pipeline no longer forwards. Restore "
                f"forward=ToTopic({registered.topic!r}, …), run `exactbatch forward {pipeline.name}`, and only then "
                f"change forward."
            )
        if topic is not None:
            _QUERIES.insert_stream(self._connection, pipeline=pipeline.name, topic=topic)
            _QUERIES.name_stream(self._connection, pipeline=pipeline.name)

    def check(self, pipeline: Pipeline) -> None:
        """Raise NotRegistered unless a pipeline forwards to the topic that it is registered with, or to none."""
        found, expected = _find_topic(self.read(pipeline.name)), _declared_topic(pipeline)
        if found != expected:
            raise NotRegistered(
                f"pipeline {pipeline.name!r} forwards its results to "
                f"{'no topic' if expected is None else repr(expected)}, but is registered to forward them to "
                f"{'no topic' if found is None else repr(found)}. Run `exactbatch register` for it."
            )

    def read(self, pipeline: str) -> Stream | None:
        """Return the stream of the pipeline of this name; None if it forwards nothing."""
        row = _QUERIES.get_stream(self._connection, pipeline=pipeline)
        return None if row is None else read_row(Stream, row)

    def number_results(self, pipeline: Pipeline, results: int) -> tuple[int, int]:
        """Take the next numbers of a stream; return its ID and the number before the first of them.

        The stream stays locked until the transaction ends.
        """
        row = _QUERIES.number_results(self._connection, pipeline=pipeline.name, results=results)
        return int(row.stream_id), int(row.sequence)

    def take(self, pipeline: str, forwarder: UUID) -> Stream:
        """Let a forwarder take the place of any other, and return the stream. Raises NotRegistered."""
        _QUERIES.take_stream(self._connection, pipeline=pipeline, forwarder=forwarder)
        if (stream := self.read(pipeline)) is None:
            raise NotRegistered(
                f"pipeline {pipeline!r} is not registered to forward results. Run `exactbatch register` for it."
            )
        return stream

    def hold(self, stream: Stream, forwarder: UUID) -> None:
        """Keep other forwarders from the stream until the transaction ends. Raises Fenced if one has taken it over."""
        row = _QUERIES.hold_stream(self._connection, stream_id=stream.stream_id, forwarder=forwarder)
        _check_own(stream, row is not None)

    def read_pending(self, stream: Stream, *, results: int, max_bytes: int) -> list[PendingResult]:
        """Return the results to send next: at most `results`, and `max_bytes` bytes unless the first alone has more."""
        rows = _QUERIES.pending_results(
            self._connection,
            stream_id=stream.stream_id,
            after=stream.sent_sequence,
            results=results,
            bytes=max_bytes,
        )
        return read_rows(PendingResult, rows)

    def find_plan(self, stream: Stream, sequence: int) -> UUID | None:
        """Return the plan of the batch of a result that was not sent; None if there is no such result."""
        row = _QUERIES.result_plan(self._connection, stream_id=stream.stream_id, sequence=sequence)
        return None if row is None else row.plan_id

    def find_too_large(self, stream: Stream, max_bytes: int) -> tuple[int, int, str | None, int] | None:
        """Return number, batch, key and bytes of the first result with more bytes; None if there is none."""
        row = _QUERIES.too_large_result(
            self._connection, stream_id=stream.stream_id, after=stream.sent_sequence, bytes=max_bytes
        )
        return None if row is None else tuple(row)

    def note_attempt(self, stream: Stream, until: int) -> None:
        """Note that the next Kafka transaction sends the results up to a number."""
        _QUERIES.note_attempt(self._connection, stream_id=stream.stream_id, until=until)

    def confirm_sent(
        self,
        stream: Stream,
        forwarder: UUID,
        sequence: int,
        topic_id: UUID,
        next_offsets: Mapping[int, int],
    ) -> None:
        """Record that the topic has all results up to a number, and delete these. Raises Fenced."""
        confirmed = _QUERIES.confirm_sent(
            self._connection,
            stream_id=stream.stream_id,
            forwarder=forwarder,
            sequence=sequence,
            topic_id=topic_id,
            next_offsets=json.dumps(next_offsets),
        )
        _check_own(stream, confirmed > 0)
        _QUERIES.delete_sent(
            self._connection, stream_id=stream.stream_id, previous=stream.sent_sequence, sequence=sequence
        )

    def find_oldest_unsent(self, pipeline: str) -> datetime | None:
        """Return when the oldest result that was not sent was committed; None if all were sent."""
        row = _QUERIES.oldest_unsent(self._connection, pipeline=pipeline)
        return None if row is None else row.committed_at


def _find_topic(stream: Stream | None) -> str | None:
    return None if stream is None else stream.topic


def _declared_topic(pipeline: Pipeline) -> str | None:
    return None if pipeline.forward is None else pipeline.forward.topic


def _check_own(stream: Stream, is_own: bool) -> None:
    if not is_own:
        raise Fenced(
            f"another forwarder has taken over the results of pipeline {stream.pipeline!r} for the topic "
            f"{stream.topic!r}. This one has nothing more to do, and nothing is lost or sent twice."
        )

"""A transactional producer of one stream of results. The outcome of a transaction is never guessed.

librdkafka's transactional API: https://github.com/confluentinc/librdkafka/blob/master/INTRODUCTION.md#transactional-producer
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from exactbatch.errors import ConfigurationError, ExactbatchError, Fenced, KafkaUnavailable
from exactbatch.failpoints import failpoint
from exactbatch.kafka.client_errors import acl_missing, connection_refused
from exactbatch.kafka.client_properties import producer_properties
from exactbatch.kafka.consumer import Signals
from exactbatch.ledger import PendingResult, Stream

logger = logging.getLogger(__name__)

# What a message has besides key and value, as text in ASCII; docs/forward.md describes it.
STREAM: Final = "exactbatch-stream"
SEQUENCE: Final = "exactbatch-sequence"
BATCH: Final = "exactbatch-batch"
PLAN: Final = "exactbatch-plan"
KIND: Final = "exactbatch-kind"
CHANGE: Final = "exactbatch-change"

# Bytes of a message besides its key and value: headers, the name of a pipeline included, and what Kafka adds.
OVERHEAD: Final = 1024
TRANSACTION_TIMEOUT: Final = 60.0  # seconds: of a transaction, and of each step of it
_ABORT_TIMEOUT: Final = 10.0
# librdkafka drops messages of a transaction that cannot commit any more, and says why when it is asked to commit.
_PURGED: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_FENCED: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


class _Log:
    """The logger of librdkafka, which would write the fatal error of a fenced producer to standard error.

    Errors are raised, and say what to do: what it logs is information.
    """

    def log(self, _level: int, message: str, *arguments: object) -> None:
        logger.info(message, *arguments)


class ResultProducer:
    """Sends results in transactions. Opening it fences every other producer of the stream, and ends its transaction."""

    def __init__(
        self, properties: Mapping[str, Any], stream: Stream, *, compression: str, max_message_bytes: int
    ) -> None:
        """Open the producer of a stream: any transaction of an earlier one is committed or aborted afterwards.

        Raises KafkaUnavailable, and ConfigurationError for refused properties, a refused login or a missing ACL.
        """
        self._stream, self._properties = stream, properties
        self._signals = Signals()
        # librdkafka has no statistics here: their interval is 0.
        self._producer = Producer(
            {
                **producer_properties(properties),
                **{name: call for name, call in self._signals.callbacks().items() if name == "error_cb"},
                "transactional.id": stream.stream,
                "transaction.timeout.ms": round(TRANSACTION_TIMEOUT * 1000),
                "compression.type": compression,
                "message.max.bytes": max_message_bytes,
            },
            logger=_Log(),
        )
        self._offsets: dict[int, tuple[int, int]] = {}
        self._failed: KafkaError | None = None
        with self._clear_errors():
            self._until_done(self._producer.init_transactions)

    def send(self, results: Iterable[PendingResult]) -> dict[int, tuple[int, int]]:
        """Send results in one transaction; return the first and the last offset of each partition that has any.

        Raises Fenced if another forwarder has taken over, KafkaUnavailable if the outcome may be unknown, and
        ConfigurationError for a missing ACL or a message that the broker refuses.
        """
        self._offsets, self._failed = {}, None
        with self._clear_errors():
            self._producer.begin_transaction()
            failpoint("forward.after_begin")
            for result in results:
                self._produce(result)
                self._producer.poll(0)
            failpoint("forward.after_produce")
            self._flush()
            failpoint("forward.before_commit")
            self._until_done(self._producer.commit_transaction)
            failpoint("forward.after_commit")
        return self._offsets

    def close(self) -> None:
        """Drop what was not sent, and end a transaction that is open."""
        self._producer.purge()
        with suppress(KafkaException):
            self._producer.abort_transaction(_ABORT_TIMEOUT)

    def _produce(self, result: PendingResult) -> None:
        while True:
            try:
                self._producer.produce(
                    self._stream.topic,
                    key=result.key,
                    value=result.value,
                    headers=[
                        (STREAM, self._stream.stream),
                        (SEQUENCE, str(result.sequence)),
                        (BATCH, str(result.batch_id)),
                        (PLAN, str(result.plan_id)),
                        (KIND, str(result.kind)),
                        (CHANGE, result.change),
                    ],
                    on_delivery=self._delivered,
                )
                return
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)
                if self._failed is not None:
                    raise KafkaException(self._failed) from None

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = self._failed or error
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        first, last = self._offsets.get(partition, (offset, offset))
        self._offsets[partition] = min(first, offset), max(last, offset)

    def _flush(self) -> None:
        """Wait until the brokers have all messages. Raises KafkaException for one that was not delivered."""
        deadline = time.monotonic() + TRANSACTION_TIMEOUT
        while self._producer.flush(1.0) and self._failed is None and time.monotonic() < deadline:
            pass
        if self._failed is not None:
            if self._failed.name() in _PURGED:
                self._until_done(self._producer.commit_transaction)  # raises the reason
            raise KafkaException(self._failed)

    def _until_done(self, step: Any) -> None:
        """Repeat a step of a transaction that may be repeated, until its time is up."""
        deadline = time.monotonic() + TRANSACTION_TIMEOUT
        while True:
            try:
                step(max(1.0, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, SystemError) as error:
            if (reason := self._reason(error)) is None:
                raise
            # The errors of connections wait for a poll, which raises a fatal one once more.
            with suppress(KafkaException, SystemError):
                self._producer.poll(0)
            self._signals.receive()
            raise self._translate(reason) from error

    def _reason(self, error: KafkaException | SystemError) -> KafkaError | None:
        """Return what librdkafka says about a call that failed; None if it says nothing.

        confluent-kafka raises a fatal error in poll() and flush(), and then goes on to call back. The result is a
        SystemError, which may have lost the fatal error. produce() only says that there is one: _FATAL. Ending the
        transaction raises the fatal error again.
        """
        for known in (error, error.__cause__):
            if isinstance(known, KafkaException) and known.args[0].name() != "_FATAL":
                return _kafka_error(known)
        try:
            self._producer.abort_transaction(_ABORT_TIMEOUT)
        except KafkaException as fatal:
            return _kafka_error(fatal)
        return None

    def _translate(self, error: KafkaError) -> ExactbatchError:
        name, topic = error.name(), self._stream.topic
        where = f"pipeline {self._stream.pipeline!r}, topic {topic!r}"
        if name in _FENCED:
            return Fenced(
                f"{where}: another forwarder has taken over the results, with the transactional.id "
                f"{self._stream.stream!r}. This one has nothing more to do, and nothing is lost or sent twice."
            )
        if name == "TOPIC_AUTHORIZATION_FAILED":
            return acl_missing("Write", "topic", topic, "forwarding results")
        if name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            return acl_missing("Write", "transactional-id", self._stream.stream, "forwarding results")
        if name in ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "POLICY_VIOLATION"):
            return ConfigurationError(
                f"{where}: the broker refuses a message: {error.str()}. Nothing of this transaction was sent. Check "
                f"the topic's max.message.bytes, and that messages have keys if its cleanup.policy is compact.",
                topic=topic,
            )
        cause = self._signals.errors.last
        if (refusal := connection_refused(self._properties, cause)) is not None:
            return refusal
        because = "" if cause is None else f" ({cause.str()})"
        return KafkaUnavailable(
            f"{where}: sending results failed with {name}: {error.str()}{because}. The next try reads from the topic "
            f"what it has, and sends the rest: nothing is lost or sent twice.",
            topic=topic,
        )


def _kafka_error(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found

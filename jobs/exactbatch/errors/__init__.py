"""The errors of exactbatch: one base class, and a subclass for each kind of failure.

A message states the facts (topic, partition, offset, column, value) and then the next step. An error also carries
these facts as attributes, so that a program or a test need not parse the message.
"""

from typing import ClassVar, TypedDict


class Place(TypedDict):
    """The attributes of an error that name a range of offsets: `OffsetsLost(message, **range_.place)`."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int


class ExactbatchError(Exception):
    """Base of all errors of exactbatch; `retryable` is true if the same batch may succeed on a retry.

    Attributes, each None where it does not apply or is not known:
        topic: name of a Kafka topic
        partition: number of a partition of `topic`
        from_offset, until_offset: a range of offsets of `partition`, half-open; a single offset n is n, n + 1
        batch_id: number of a batch in the ledger
        column: name of a column of the target or of the pipeline's value
        constraint: name of a constraint of the target
        sqlstate: the code of five characters that Postgres sent

    Errors travel from executors to the driver: pickling keeps the message and the attributes, because
    BaseException stores the former in `args` and reduces to `args` and `__dict__`.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        from_offset: int | None = None,
        until_offset: int | None = None,
        batch_id: int | None = None,
        column: str | None = None,
        constraint: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.from_offset = from_offset
        self.until_offset = until_offset
        self.batch_id = batch_id
        self.column = column
        self.constraint = constraint
        self.sqlstate = sqlstate


class RetryableError(ExactbatchError):
    """The same batch may succeed when it is tried again."""

    retryable = True


class ConfigurationError(ExactbatchError):
    """A pipeline, a connection or a setting is not usable as it is written."""


class NotRegistered(ExactbatchError):
    """The database does not know this pipeline or this version of the ledger."""


class BatchLost(ExactbatchError):
    """The ledger does not have a batch that was planned: the database went back in time, or is another one."""


class IdentityChanged(ExactbatchError):
    """A pipeline's target, sink, key, version or lineage differs from what the ledger has registered."""


class TopicMissing(ExactbatchError):
    """The broker does not know a topic of the pipeline."""


class TopicRecreated(ExactbatchError):
    """A topic has another id than the one that was processed so far."""


class PartitionGone(ExactbatchError):
    """A partition with a stored offset is no longer there."""


class OffsetsLost(ExactbatchError):
    """Retention removed offsets that were not processed yet."""


class LogWentBackwards(ExactbatchError):
    """The log ends before an offset that was already processed."""


class LogTruncated(ExactbatchError):
    """The log was cut below a processed offset and has grown again past it."""


class StartOutOfRange(ExactbatchError):
    """An explicit start offset is outside the log."""


class ReplayRefused(ExactbatchError):
    """What was asked to be processed again is not what was processed."""


class TargetMismatch(ExactbatchError):
    """The target's columns are not those that the pipeline writes, or it refuses what is written."""


class StatementRefused(ExactbatchError):
    """Postgres refused a statement, and will again until the database or the pipeline is changed."""


class TransformRefused(ExactbatchError):
    """A transform does not give what its sink needs, or may give something else when it is tried again."""


class TransformFailed(ExactbatchError):
    """A transform raised an error over a record that it fails for each time."""


class KeyOnTwoPartitions(ExactbatchError):
    """Changes of one key are in several partitions, and nothing tells their order."""


class TooManyRejects(ExactbatchError):
    """More records could not be decoded than the pipeline allows."""


class Fenced(ExactbatchError):
    """Another batch has taken this one's place, so it must not write any more."""


class KafkaUnavailable(RetryableError):
    """The broker cannot be reached, or does not answer in time."""


class RegistryUnavailable(RetryableError):
    """The schema registry cannot be reached, or does not answer."""


class LogEndedEarly(RetryableError):
    """The log ended before the range did, and stayed so until the deadline."""


class ReadFailed(RetryableError):
    """Reading a range stopped: no progress until the deadline, or an error that may pass."""


class PostgresUnavailable(RetryableError):
    """Postgres cannot be reached, ended the connection, did not grant a lock in time, or has its own trouble."""


class StagedRowsDiffer(RetryableError):
    """A staging table does not hold the rows that its tasks reported."""


class StoredOffsetsMoved(RetryableError):
    """The stored offsets kept moving while a batch was planned."""


class TasksFailed(RetryableError):
    """Spark gave up on a task of the batch."""


class UnexpectedError(RetryableError):
    """An error that exactbatch does not know: its own, a library's, or one in the pipeline's code."""

"""The errors of exactbatch: one base class, and a subclass for each kind of failure.

A message states the facts (topic, partition, offset, column, value) and then the next step. An error also carries
these facts as attributes, so that a program or a test need not parse the message. A message may quote what a record
holds: it is printable, and one line.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypedDict

from exactbatch.errors.printable import printable


class RangePlace(TypedDict):
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

    Errors travel from executors to the driver as the message and the attributes (batch/staging/shares.py).
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
        super().__init__(self._show(message))
        self.topic = topic
        self.partition = partition
        self.from_offset = from_offset
        self.until_offset = until_offset
        self.batch_id = batch_id
        self.column = column
        self.constraint = constraint
        self.sqlstate = sqlstate

    @staticmethod
    def _show(message: str) -> str:
        return printable(message)


class RetryableError(ExactbatchError):
    """The same batch may succeed on a retry."""

    retryable = True


class ConfigurationError(ExactbatchError):
    """A pipeline, a connection or a setting is invalid."""


class WrongUsage(ConfigurationError):
    """What somebody typed for a command is wrong: a name, the form of a value, or the options together.

    Only commands end with it: a task has no one who typed. It has no page, because its message says all.
    """


class NotRegistered(ExactbatchError):
    """The pipeline is not in the ledger, or the ledger has another version than this program needs."""


class BatchLost(ExactbatchError):
    """The ledger lacks a batch that was planned: the database was restored, failed over, or is another one."""


class IdentityChanged(ExactbatchError):
    """A pipeline's target, sink, key, version or lineage differs from what the ledger has registered."""


class TopicMissing(ExactbatchError):
    """A topic of the pipeline does not exist."""


class TopicRecreated(ExactbatchError):
    """A topic was deleted and created again: it has another ID, or other records, than the one that was processed."""


class PartitionGone(ExactbatchError):
    """A partition with a stored offset no longer exists."""


class OffsetsLost(ExactbatchError):
    """Retention removed offsets before they were processed."""


class StoredOffsetBeyondLog(ExactbatchError):
    """The log ends before an offset that was already processed."""


class LogTruncated(ExactbatchError):
    """The log was truncated below a processed offset and has grown past it again."""


class StartOutOfRange(ExactbatchError):
    """An explicit start offset is outside the log."""


class ReplayRefused(ExactbatchError):
    """The requested offsets cannot be processed again."""


class PruneRefused(ExactbatchError):
    """Old batches cannot be folded while a replay of their offsets is planned."""


class RefusedRecord(NamedTuple):
    """A record whose row the target refuses, and why."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


class TargetMismatch(ExactbatchError):
    """The target's columns do not match the pipeline, or the target refuses or alters its rows."""

    # The records without which it may accept the others, if these are known: they may become rejects.
    refused: Sequence[RefusedRecord] = ()


class StatementRefused(ExactbatchError):
    """Postgres refuses a statement until the database or the pipeline is changed."""


class TransformRefused(ExactbatchError):
    """A transform does not return what its sink needs, or may return other rows on a retry."""


class TransformFailed(ExactbatchError):
    """A transform fails for a certain record every time."""


class KeyOnTwoPartitions(ExactbatchError):
    """Changes of one key are in several partitions, and nothing orders them: no version, or equal ones."""


class PositionsWentBack(ExactbatchError):
    """A change has a smaller position than an earlier one of its partition, and repeats none."""


class TooManyRejects(ExactbatchError):
    """A batch has more rejects than max_rejects allows."""


class Fenced(ExactbatchError):
    """Another batch or forwarder has taken the place of this one, which must not write any more."""


class ResultTooLarge(ExactbatchError):
    """A result is larger than a message to its topic may be."""


class ResultsDiverged(ExactbatchError):
    """A topic has results of batches that the ledger does not know, or it is unknown what a topic has."""


class KafkaUnavailable(RetryableError):
    """The brokers cannot be reached or do not answer in time."""


class RegistryUnavailable(RetryableError):
    """The schema registry cannot be reached or does not answer."""


class TokenUnavailable(RetryableError):
    """A provider returned no token for Kafka or Postgres, or the server refused the token."""


class AirflowUnavailable(RetryableError):
    """Airflow's API server does not answer the requests of a task."""


class LogEndedEarly(RetryableError):
    """The log ended before the end of a range, and did not grow until the deadline."""


class ReadFailed(RetryableError):
    """Reading a range made no progress until the deadline, or met a transient error."""


class PostgresUnavailable(RetryableError):
    """Postgres cannot be reached, closed the connection, did not grant a lock in time, or had an internal error."""


class StagedRowsDiffer(RetryableError):
    """A staging table does not have the rows that its tasks reported."""


class StoredOffsetsMoved(RetryableError):
    """The stored offsets kept moving while a batch was planned."""


class TasksFailed(RetryableError):
    """Spark gave up on a task of the batch."""


class UnexpectedError(RetryableError):
    """An exception that exactbatch does not recognize: a defect of its own, of a library, or of the pipeline's code."""


class TablesFailed(ExactbatchError):
    """The batches of some tables failed, and a retry helps none of them. The batches of the other tables are
    committed."""


class TablesUnfinished(RetryableError):
    """The batches of some tables failed, and a retry may help. The batches of the other tables are committed."""

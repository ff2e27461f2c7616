"""What a pipeline makes of records."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactbatch.errors import ConfigurationError, ExactbatchError

Row = dict[str, object]


@dataclass(frozen=True)
class Reject:
    """A record that gave no row, and the reason that exactbatch.rejected_record would have."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True)
class DecodedRecords:
    """What a pipeline makes of records.

    rows        the rows, with Python values, by topic, partition and offset; for an Upsert they are changes, with the
                column `deleted`. A value of a type that Postgres parses, such as uuid, jsonb or numeric without a
                precision, is text, and so is a date or time that Python cannot hold
    rejects     the records that gave no row, by topic, partition and offset
    records     how many records there were: those with rows + rejects + tombstones + dropped
    tombstones  how many had a null value, and gave no row
    dropped     how many decoded and gave no row: an array without elements, or a transform that left them out
    unverified  the columns whose values Postgres alone can refuse, with their types; empty after load()
    """

    rows: list[Row]
    rejects: list[Reject]
    records: int
    tombstones: int
    dropped: int
    unverified: Mapping[str, str]


@dataclass(frozen=True)
class Loaded(DecodedRecords):
    """What batches of a pipeline make of records, and what its targets hold; of several batches, `rows` and `rejects`
    have those of the first one before those of the second."""

    _targets: Mapping[str, list[Row]] = field(repr=False)
    _error: ExactbatchError | None = field(repr=False)

    @property
    def targets(self) -> Mapping[str, list[Row]]:
        """The rows of each target, by its name in the sink.

        Raises what a batch raises instead of writing, such as TooManyRejects and KeyOnTwoPartitions.
        """
        if self._error is not None:
            raise self._error
        return self._targets

    @property
    def target(self) -> list[Row]:
        """The rows of the only target, for an Append by topic, partition and offset, otherwise by key.

        Raises what `targets` raises, and ConfigurationError if there are several.
        """
        if len(self.targets) > 1:
            names = ", ".join(map(repr, self.targets))
            raise ConfigurationError(f"the pipeline has several targets. Use targets[…] with one of {names}.")
        return next(iter(self.targets.values()))

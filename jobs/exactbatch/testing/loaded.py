"""What a pipeline makes of records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline

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
class Loaded:
    """What one batch of a pipeline makes of records.

    rows        the rows, with Python values, by topic, partition and offset; for an Upsert they are changes, with the
                column `deleted`. A value of a type that Postgres parses, such as uuid, jsonb or numeric without a
                precision, is text, and so is a date or time that Python cannot hold
    rejects     the records that gave no row, by topic, partition and offset
    records     how many records there were: those with rows + rejects + tombstones + dropped
    tombstones  how many had a null value, and gave no row
    dropped     how many decoded and gave no row: an array without elements, or a transform that left them out
    unverified  the columns whose values Postgres alone can refuse, with their types; empty with `postgres`
    """

    pipeline: Pipeline = field(repr=False)
    rows: list[Row]
    rejects: list[Reject]
    records: int
    tombstones: int
    dropped: int
    unverified: Mapping[str, str]
    _find_targets: Callable[[], dict[str, list[Row]]] = field(repr=False, compare=False)

    @cached_property
    def targets(self) -> dict[str, list[Row]]:
        """The rows of each target after the batch, by the target's name in its sink.

        Raises what a batch raises instead of writing, such as TooManyRejects and KeyOnTwoPartitions, and
        ConfigurationError for a target that only Postgres can compute.
        """
        return self._find_targets()

    @property
    def target(self) -> list[Row]:
        """The rows of the only target, for an Append by topic, partition and offset, otherwise by key.

        Raises what `targets` raises, and ConfigurationError if there are several.
        """
        if len(self.targets) > 1:
            names = ", ".join(map(repr, self.targets))
            raise ConfigurationError(
                f"pipeline {self.pipeline.name!r} has several targets. Use targets[…] with one of {names}."
            )
        return next(iter(self.targets.values()))

"""The result of an audit: what was compared, and every difference."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from exactbatch.offsets import TopicPartition

Offsets = npt.NDArray[np.int64]

SHOWN: Final = 10  # offsets, batches or notes that a finding names


@dataclass(slots=True)
class Differences:
    """Offsets at which log and target differ: how many, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, offsets: Offsets) -> None:
        """Count these offsets, which ascend, and remember the first."""
        self.merge(Differences(len(offsets), offsets[:SHOWN].tolist()))

    def merge(self, other: "Differences") -> None:
        """Count what another worker found, too."""
        self.count += other.count
        self.first = sorted([*self.first, *other.first])[:SHOWN]


@dataclass(slots=True)
class PartitionAudit:
    """One partition, compared from where the pipeline began to its stored offset.

    records       committed records in the log
    rows          rows in the target; with `rejected` records, `tombstones`, those `elsewhere` and `compacted` records
                  they make up `records`
    elsewhere     records whose row belongs to another target of a Route
    lost          offsets that the ledger records as lost before they were processed
    compacted     records below the replay horizon with neither a row nor a reject: exactbatch compact drops such
                  changes, so that nothing proves or disproves them
    removed       processed offsets that the log no longer holds, so that nothing proves or disproves them
    missing       records that no row and no reject accounts for
    duplicated    offsets with more than one row or reject
    unexpected    rows or rejects without a record, at a lost or uncovered offset, or of another batch than the one
                  that covers their offset; and rows of records that give none, as tombstones
    changed       rows and rejects whose values differ from their record; compared with `values` only
    gaps          offsets that the ledger accounts for neither as processed nor as lost

    target        the target, if the batches write several

    With lineage="batch", and with a transform, which may give any number of rows for a record, rows are counted
    batch by batch, and a difference stands at the first offset that the batch covers.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    records: int = 0
    rows: int = 0
    rejected: int = 0
    tombstones: int = 0
    elsewhere: int = 0
    lost: int = 0
    removed: int = 0
    compacted: int = 0
    missing: Differences = field(default_factory=Differences)
    duplicated: Differences = field(default_factory=Differences)
    unexpected: Differences = field(default_factory=Differences)
    changed: Differences = field(default_factory=Differences)
    gaps: Differences = field(default_factory=Differences)
    target: str | None = None

    def merge(self, other: "PartitionAudit") -> None:
        """Add what was found in other offsets of the partition."""
        for name in (
            "records",
            "rows",
            "rejected",
            "tombstones",
            "elsewhere",
            "lost",
            "removed",
            "compacted",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, finding in self.findings.items():
            finding.merge(other.findings[kind])

    @property
    def findings(self) -> dict[str, Differences]:
        """Every kind of difference, by its name."""
        return {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
            "changed": self.changed,
            "gaps": self.gaps,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """What a worker found: its part of each partition; the number of rows of each batch, -1 for no batch; the offset
    at which the log of each partition started when it was read; and the first of its findings in words."""

    partitions: Sequence[PartitionAudit]
    rows_of_batches: Mapping[int, int]
    earliest: Mapping[TopicPartition, int]
    notes: Sequence[str] = ()


@dataclass(slots=True)
class TargetAudit:
    """The findings about the target and the ledger as a whole.

    changed        partial results that differ from what their records give; compared with `values` only
    stale          rows of a derived target that differ from what its changes or partial results give; with `values`,
                   rows of an Upsert without history that are not the latest change in the log
    unordered      keys of an Upsert whose latest change nothing determines, and changes whose position in the source
                   goes back within a partition; with history=False, counted with `values` only
    misplaced      rows, rejects and event times that claim a topic, partition or offset at which their batch
                   cannot have put them, or a batch that has not written to this target
    miscounted     batches that now have a different number of rows or rejects than when they were committed
    contradictory  statements of the ledger that contradict each other
    doubled        offsets whose results another pipeline also has in the same target, although neither is
                   registered with --share-topics
    unsafe         tables that can lose committed rows or commit outside of the transaction: unlogged and
                   foreign ones
    undecided      keys of a target that keeps only latest changes, whose record the log no longer holds, so that
                   nothing proves or disproves their row; counted with `values` only. They are not a difference
    not_ours       rows that exactbatch has not written: they name no batch and none of the pipeline's topics.
                   They are not a difference
    notes          the first of these, in words
    """

    changed: int = 0
    stale: int = 0
    unordered: int = 0
    misplaced: int = 0
    miscounted: int = 0
    contradictory: int = 0
    doubled: int = 0
    unsafe: int = 0
    undecided: int = 0
    not_ours: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> dict[str, int]:
        """Every kind of difference, by its name."""
        return {
            "changed": self.changed,
            "stale": self.stale,
            "unordered": self.unordered,
            "misplaced": self.misplaced,
            "miscounted": self.miscounted,
            "contradictory": self.contradictory,
            "doubled": self.doubled,
            "unsafe": self.unsafe,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The comparison of log and target of one pipeline."""

    partitions: Sequence[PartitionAudit]
    target: TargetAudit

    @property
    def findings(self) -> dict[str, int]:
        """How many differences of each kind there are, over all partitions and the target."""
        totals = dict.fromkeys(("missing", "duplicated", "unexpected", "gaps"), 0) | self.target.findings
        for partition in self.partitions:
            for kind, finding in partition.findings.items():
                totals[kind] += finding.count
        return totals

    @property
    def is_exact(self) -> bool:
        """True if every record is accounted for once, and nothing else is there."""
        return not any(self.findings.values())

    @property
    def records(self) -> int:
        """Committed records in the log, each counted once."""
        return sum(each.records for each in self._once)

    @property
    def rows(self) -> int:
        """Rows in all targets."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def rejected(self) -> int:
        """Rejected records, each counted once."""
        return sum(each.rejected for each in self._once)

    @property
    def _once(self) -> Iterable[PartitionAudit]:
        """Each partition for one of the targets: all have the same records and rejects."""
        return {(each.topic, each.partition): each for each in self.partitions}.values()


def join_reports(reports: Sequence[tuple[str, AuditReport]]) -> AuditReport:
    """Return one report of several targets, by name, that the batches of one pipeline write."""
    target = TargetAudit()
    for name, report in reports:
        for kind in (*report.target.findings, "not_ours"):
            setattr(target, kind, getattr(target, kind) + getattr(report.target, kind))
        target.notes += [f"{name}: {note}" for note in report.target.notes]
        if not report.is_exact:
            found = ", ".join(f"{count} {kind}" for kind, count in report.findings.items() if count)
            target.notes.append(f"{name}: {found}")
    partitions = [replace(each, target=name) for name, report in reports for each in report.partitions]
    return AuditReport(partitions, target)

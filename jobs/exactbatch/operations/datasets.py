"""What a batch reads and writes, under the names that lineage tools give to topics and tables. Pure.

See https://openlineage.io/docs/spec/naming.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exactbatch.ledger import Batch
from exactbatch.offsets import OffsetRange

_SHOWN: Final = 100  # ranges of a batch, over all of its topics: a batch may have thousands
_KAFKA_PORT: Final = "9092"
_POSTGRES_PORT: Final = "5432"
_REJECTS: Final = ("exactbatch", "rejected_record")


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What a batch reads from one topic: its first ranges, and the totals of all.

    `records` is None before the commit.
    """

    topic: str
    ranges: int
    offsets: int
    records: int | None
    first: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a batch writes to; `rows` is None before the commit, and if the ledger has no number for it."""

    name: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class BatchDatasets:
    """A batch with its topics, in the namespace `kafka`, and its tables, in the namespace `postgres`."""

    batch: Batch
    kafka: str
    topics: tuple[TopicRanges, ...]
    postgres: str
    tables: tuple[Table, ...]


def kafka_namespace(bootstrap_servers: str) -> str:
    """Return the namespace of a cluster's topics: its first bootstrap server, without protocol and user."""
    server = bootstrap_servers.split(",")[0].strip().rpartition("://")[2].rpartition("@")[2]
    has_port = ":" in server.rpartition("]")[2]
    return f"kafka://{server}" if has_port else f"kafka://{server}:{_KAFKA_PORT}"


def postgres_namespace(dsn: Mapping[str, Any]) -> str:
    """Return the namespace of a server's tables from libpq's parameters: the first host, without user and password.

    The host that a session has reached is no name: after a failover, the tables are still the same.
    """
    host = str(dsn.get("host") or dsn.get("hostaddr") or "").split(",")[0]
    port = str(dsn.get("port") or "").split(",")[0] or _POSTGRES_PORT
    if not host or host[0] in "/@":  # the socket of a server on this machine
        host = "localhost"
    return f"postgres://[{host}]:{port}" if ":" in host else f"postgres://{host}:{port}"


def topic_ranges(ranges: Iterable[tuple[OffsetRange, int | None]]) -> tuple[TopicRanges, ...]:
    """Return what a batch reads by topic, from its ranges and the numbers of their records."""
    by_topic: dict[str, list[tuple[OffsetRange, int | None]]] = defaultdict(list)
    for each in ranges:
        by_topic[each[0].topic].append(each)
    shown = max(1, _SHOWN // max(1, len(by_topic)))
    return tuple(
        TopicRanges(
            topic=topic,
            ranges=len(of_topic),
            offsets=sum(len(range_) for range_, _ in of_topic),
            records=_sum([records for _, records in of_topic]),
            first=tuple(range_ for range_, _ in of_topic[:shown]),
        )
        for topic, of_topic in sorted(by_topic.items())
    )


def tables(batch: Batch, database: str, targets: Sequence[tuple[str, str]]) -> tuple[Table, ...]:
    """Return the tables that a batch writes to: its targets and, if it has rejects, the table that keeps them.

    The batch's number of rows is the number of the first target's rows.
    """
    first, *others = (".".join((database, *target)) for target in targets)
    written = [Table(first, batch.rows), *(Table(other, None) for other in others)]
    if batch.rejected:
        written.append(Table(".".join((database, *_REJECTS)), batch.rejected))
    return tuple(written)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None

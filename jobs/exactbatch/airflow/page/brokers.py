"""Ask Kafka for the page: threads ask, and the page shows an answer for seconds.

Where a log ended at a past time never changes: it is kept while somebody looks.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from exactbatch.airflow.connections import kafka_properties
from exactbatch.airflow.page.databases import airflow_connection, describe_error
from exactbatch.airflow.page.first_records import FirstRecords, Known, Unprocessed, only_current
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import LogPartition
from exactbatch.offsets import PartitionKey, TopicPartition
from exactbatch.operations.unprocessed import Stored
from exactbatch.planning.plan_tables import existing_partitions

_FRESH: Final = 4.0  # seconds for which an answer of Kafka is shown without asking again
_WANTED: Final = 60.0  # seconds for which Kafka is asked about a pipeline that nobody looks at any more
_FIRST: Final = 0.15  # seconds that a request waits for the first answer of Kafka
_RETENTION_FRESH: Final = 60.0  # seconds
_FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # that Kafka's timestamps can have

logger = logging.getLogger(__name__)
_KEPT: Final = timedelta(days=2)
_UNUSED: Final = 3600.0  # seconds after which the ends of logs are forgotten that nobody has asked for
_Logs = tuple[str, tuple[PartitionKey, ...]]  # the ID of Airflow's connection, and the partitions


@dataclass(frozen=True, slots=True)
class LogState:
    """What Kafka last reported about some topics.

    logs       by topic; topics about which nothing is known are missing
    errors     why Kafka could not be asked, or does not know a topic, by topic
    taken_at   when this was; None before the first answer
    retention  how long the broker keeps records, by topic; None for no limit
    written    when the first unprocessed record of a partition was written, at the earliest; where several pipelines
               read the partition, the one that is furthest behind counts
    first      the first unprocessed records of pipelines that can be overdue, as they were looked up last
    """

    logs: Mapping[str, tuple[LogPartition, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    taken_at: datetime | None = None
    retention: Mapping[str, timedelta | None] = field(default_factory=dict)
    written: Mapping[TopicPartition, datetime] = field(default_factory=dict)
    first: Known = field(default_factory=dict)


class Brokers:
    """What Kafka reports, by the ID of Airflow's connection. Threads ask; a request shows what is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def watch(
        self,
        conn_id: str,
        pipeline: str,
        topics: Sequence[str],
        stored: Mapping[TopicPartition, Stored],
        *,
        may_be_overdue: bool = False,
    ) -> None:
        """Let threads ask about a pipeline's topics while somebody looks at it.

        `stored` are its stored offsets, from which it is computed when retention reaches them, and where timestamps
        are read if the pipeline `may_be_overdue`.
        """
        with self._lock:
            watched = self._watched.setdefault(conn_id, _Watched(conn_id))
        watched.watch(pipeline, topics, stored, may_be_overdue=may_be_overdue)

    def state(self, conn_id: str) -> LogState:
        """Return what is known of all watched topics, and let a thread ask again if that is seconds old.

        Waits a moment for topics about which nothing is known yet.
        """
        with self._lock:
            watched = self._watched.setdefault(conn_id, _Watched(conn_id))
        return watched.state()


@dataclass(frozen=True, slots=True)
class _Viewed:
    """A pipeline that somebody has looked at, at a time of the monotonic clock, and its stored offsets then."""

    at: float
    topics: Sequence[str]
    stored: Mapping[TopicPartition, Stored]
    may_be_overdue: bool


class _Watched:
    """The pipelines of one connection that somebody has looked at lately, and their topics."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._changed = threading.Condition()
        self._viewed: dict[str, _Viewed] = {}  # by pipeline
        self._state = LogState()
        self._began = -_FRESH
        self._retention_began = -_RETENTION_FRESH
        self._is_asking = False
        self._first_records = FirstRecords()
        self._first: Known = {}
        self._is_looking_up = False
        self._look_up_after = 0.0

    def watch(
        self,
        pipeline: str,
        topics: Sequence[str],
        stored: Mapping[TopicPartition, Stored],
        *,
        may_be_overdue: bool,
    ) -> None:
        """Remember a pipeline's topics and stored offsets, in place of those it had before."""
        with self._changed:
            self._viewed[pipeline] = _Viewed(time.monotonic(), topics, stored, may_be_overdue)

    def state(self) -> LogState:
        """Return what is known."""
        now = time.monotonic()
        with self._changed:
            known = self._state.logs.keys() | self._state.errors.keys()
            topics = self._topics()
            is_new = not topics <= known
            if topics and not self._is_asking and (is_new or now - self._began > _FRESH):
                self._is_asking, self._began = True, now
                threading.Thread(target=self._ask, name=f"exactbatch {self._conn_id}", daemon=True).start()
            if is_new:
                self._changed.wait(_FIRST)
            return replace(self._state, first=self._first)

    def _topics(self) -> set[str]:
        return {topic for each in self._viewed.values() for topic in each.topics}

    def _ask(self) -> None:
        with self._changed:
            now = time.monotonic()
            self._viewed = {name: each for name, each in self._viewed.items() if now - each.at < _WANTED}
            topics = sorted(self._topics())
        state = LogState(errors=dict.fromkeys(topics, "Kafka was not asked"), taken_at=datetime.now(UTC))
        try:
            state = self._answer(topics)
        except ExactbatchError as error:
            state = LogState(errors=dict.fromkeys(topics, str(error)), taken_at=datetime.now(UTC))
        except Exception as error:
            # Whatever a client library raises, the page goes on to show the ledger.
            text = f"Kafka could not be asked: {type(error).__name__}"
            state = LogState(errors=dict.fromkeys(topics, text), taken_at=datetime.now(UTC))
        finally:
            with self._changed:
                self._state, self._is_asking = state, False
                self._changed.notify_all()
        self._look_up([log for logs in state.logs.values() for log in logs])

    def _look_up(self, logs: Sequence[LogPartition]) -> None:
        """Look up timestamps of first unprocessed records, unless another thread is doing it; it may take seconds."""
        now = time.monotonic()
        with self._changed:
            pipelines = {
                name: Unprocessed(each.topics, each.stored)
                for name, each in self._viewed.items()
                if each.may_be_overdue
            }
            if self._is_looking_up or not pipelines or now < self._look_up_after:
                return
            self._is_looking_up = True
        try:
            broker = KafkaBroker(kafka_properties(airflow_connection(self._conn_id)))
            first = self._first_records.look_up(
                logs, pipelines, lambda places, held: broker.first_timestamps(places, uncommitted=held)
            )
            with self._changed:
                self._first = first
        except Exception as error:
            logger.warning("the ages of unprocessed records are not known: %s", describe_error(error))
            with self._changed:
                self._look_up_after = now + _WANTED
                # Until then, nothing replaces what was found where a pipeline no longer stands.
                self._first = only_current(self._first, pipelines)
        finally:
            with self._changed:
                self._is_looking_up = False

    def _answer(self, topics: Sequence[str]) -> LogState:
        properties = kafka_properties(airflow_connection(self._conn_id))
        broker = KafkaBroker(properties, settle=0)
        logs, errors = existing_partitions(broker, topics)
        retention, written = self._state.retention, self._state.written
        if time.monotonic() - self._retention_began > _RETENTION_FRESH or logs.keys() - retention.keys():
            self._retention_began = time.monotonic()
            retention, written = self._retention(broker, [log for each in logs.values() for log in each])
        return LogState(
            {topic: tuple(each) for topic, each in logs.items()},
            {topic: str(error) for topic, error in errors.items()},
            datetime.now(UTC),
            retention,
            written,
        )

    def _retention(
        self, broker: KafkaBroker, partitions: Sequence[LogPartition]
    ) -> tuple[Mapping[str, timedelta | None], Mapping[TopicPartition, datetime]]:
        """Ask how long records are kept, and when the first unprocessed ones were written; lack of rights hides it."""
        # A topic whose settings an ACL hides is not asked about again at once.
        retention = dict[str, timedelta | None].fromkeys(each.topic for each in partitions)
        try:
            limits = broker.retention(sorted(retention))
            retention |= {topic: limit.age for topic, limit in limits.items()}
            with self._changed:
                stored = dict[TopicPartition, int]()
                for viewed in self._viewed.values():
                    for partition, each in viewed.stored.items():
                        stored[partition] = min(each.next_offset, stored.get(partition, each.next_offset))
            ages = {topic: age for topic, age in retention.items() if age is not None}
            behind = {
                log.topic_partition: stored[log.topic_partition]
                for log in partitions
                if log.topic in ages
                and log.earliest <= stored.get(log.topic_partition, -1) < log.high_watermark
            }
            now = datetime.now(UTC)
            # Of each topic alone: the result is exact to a share of this time.
            since = {each: now - min(2 * ages[each[0]], now - _FIRST_TIME) for each in behind}
            return retention, broker.written_at(behind, since)
        except ExactbatchError:
            return dict.fromkeys(retention), {}


def compute_retention_left(
    state: LogState, stored: Collection[TopicPartition], now: datetime
) -> timedelta | None:
    """Return after what time retention may remove the first unprocessed record; None without a limit or lag. Pure."""
    left = [
        written + age - now
        for partition, written in state.written.items()
        if partition in stored and (age := state.retention.get(partition[0])) is not None
    ]
    return min(left) if left else None


@dataclass(slots=True)
class _Known:
    """How many offsets some logs together had before each time, and when somebody asked for it last."""

    used_at: float
    ends: dict[datetime, int] = field(default_factory=dict)
    is_asking: bool = False


class PastEnds:
    """How many offsets the logs of a pipeline had before past times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Logs, _Known] = {}

    def ends_at(
        self, conn_id: str, logs: Sequence[LogPartition], times: Sequence[datetime]
    ) -> dict[datetime, int]:
        """Return how many offsets all logs together had before each time, for the times about which that is known.

        A thread asks for the others.
        """
        key = conn_id, tuple(sorted(each.key for each in logs))
        now = time.monotonic()
        with self._lock:
            for unused in [key for key, each in self._known.items() if now - each.used_at > _UNUSED]:
                del self._known[unused]
            known = self._known.setdefault(key, _Known(now))
            known.used_at = now
            unknown = [at for at in times if at not in known.ends]
            if unknown and not known.is_asking:
                known.is_asking = True
                threading.Thread(
                    target=_ask, args=(self._lock, known, conn_id, logs, unknown), daemon=True
                ).start()
            return {at: known.ends[at] for at in times if at in known.ends}


def _ask(
    lock: threading.Lock,
    known: _Known,
    conn_id: str,
    logs: Sequence[LogPartition],
    times: Sequence[datetime],
) -> None:
    found: dict[datetime, int] = {}
    try:
        ends = KafkaBroker(kafka_properties(airflow_connection(conn_id))).ends_at(logs, times)
        found = dict(zip(times, ends, strict=True))
    except Exception as error:
        logger.warning("the ends of logs are not known: %s", describe_error(error))
    oldest = datetime.now(UTC) - _KEPT
    with lock:
        known.ends = {at: end for at, end in (known.ends | found).items() if at > oldest}
        known.is_asking = False

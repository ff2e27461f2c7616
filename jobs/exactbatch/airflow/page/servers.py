"""The page's access to the ledgers' databases and to Kafka: few connections, short waits, answers kept for seconds."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg2
from airflow.models.connection import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowNotFoundException

from exactbatch.airflow.connections import kafka_properties, postgres_dsn
from exactbatch.airflow.page.first_records import FirstRecords, Place
from exactbatch.errors import ConfigurationError, ExactbatchError, TopicMissing
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import check_schema
from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition
from exactbatch.postgres.connection import Connection, connect

_TIMEOUT: Final = 5.0  # seconds until Postgres must answer a connection
_STATEMENT_TIMEOUT: Final = 10.0  # seconds
_IDLE: Final = 60.0  # seconds for which an idle connection is kept
_SPARE: Final = 4  # idle connections to one database
_FRESH: Final = 4.0  # seconds for which an answer of Kafka is shown without asking again
_WANTED: Final = 60.0  # seconds for which Kafka is asked about a topic that nobody looks at any more
_FIRST: Final = 0.15  # seconds that a request waits for the first answer of Kafka
_RETENTION_FRESH: Final = 60.0  # seconds
_KEPT: Final = timedelta(days=2)

logger = logging.getLogger(__name__)


class Databases:
    """Connections to the databases of ledgers, by the ID of Airflow's connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, Connection]]] = {}

    @contextmanager
    def connection(self, conn_id: str) -> Iterator[Connection]:
        """Yield a connection that only reads, and whose statements may take ten seconds.

        It is kept for the next request.

        Raises ConfigurationError for an incomplete connection, LedgerOutdated and PostgresUnavailable.
        """
        dsn = postgres_dsn(airflow_connection(conn_id))
        connection = self._take(dsn)
        if connection is None:
            connection = connect(
                dsn, application="exactbatch page", timeout=_TIMEOUT, statement_timeout=_STATEMENT_TIMEOUT
            )
            try:
                connection.rollback()
                connection.set_session(readonly=True)
                check_schema(connection)
            except BaseException:
                connection.close()
                raise
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with suppress(psycopg2.Error):
            connection.rollback()
        self._give_back(dsn, connection)

    def _take(self, dsn: str) -> Connection | None:
        now = time.monotonic()
        with self._lock:
            idle = self._idle.get(dsn, [])
            old = [each for at, each in idle if now - at > _IDLE]
            idle[:] = [(at, each) for at, each in idle if now - at <= _IDLE]
            found = idle.pop()[1] if idle else None
        for each in old:
            each.close()
        return None if found is None or found.closed else found

    def _give_back(self, dsn: str, connection: Connection) -> None:
        with self._lock:
            idle = self._idle.setdefault(dsn, [])
            if not connection.closed and len(idle) < _SPARE:
                idle.append((time.monotonic(), connection))
                return
        connection.close()


@dataclass(frozen=True, slots=True)
class LogState:
    """What Kafka last reported about some topics.

    logs       by topic; topics about which nothing is known are missing
    errors     why Kafka could not be asked, or does not know a topic, by topic
    taken_at   when this was; None before the first answer
    retention  how long the broker keeps records, by topic; None for no limit
    written    when the first unprocessed record of a partition was written, at the earliest; where several pipelines
               read the partition, the one that is furthest behind counts
    first      timestamps of the first records at or after stored offsets of pipelines that can be overdue
    """

    logs: Mapping[str, tuple[LogPartition, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    taken_at: datetime | None = None
    retention: Mapping[str, timedelta | None] = field(default_factory=dict)
    written: Mapping[TopicPartition, datetime] = field(default_factory=dict)
    first: Mapping[Place, datetime] = field(default_factory=dict)


class Brokers:
    """What Kafka reports, by the ID of Airflow's connection. Threads ask; a request shows what is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._ends: dict[Any, dict[datetime, int]] = {}
        self._asking: set[Any] = set()

    def watch(
        self,
        conn_id: str,
        pipeline: str,
        topics: Sequence[str],
        stored: Mapping[TopicPartition, int],
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

    def ends_at(
        self, conn_id: str, logs: Sequence[LogPartition], times: Sequence[datetime]
    ) -> dict[datetime, int]:
        """Return how many offsets all logs together had before each time, for the times about which that is known.

        A thread asks for the others; past ends do not change.
        """
        key = conn_id, tuple(sorted(each.key for each in logs))
        with self._lock:
            known = self._ends.setdefault(key, {})
            unknown = [at for at in times if at not in known]
            if unknown and key not in self._asking:
                self._asking.add(key)
                threading.Thread(target=self._ask_ends, args=(key, logs, unknown), daemon=True).start()
            return {at: known[at] for at in times if at in known}

    def _ask_ends(self, key: Any, logs: Sequence[LogPartition], times: Sequence[datetime]) -> None:
        found: dict[datetime, int] = {}
        try:
            ends = KafkaBroker(kafka_properties(airflow_connection(key[0]))).ends_at(logs, times)
            found = dict(zip(times, ends, strict=True))
        except Exception as error:
            logger.warning("the ends of logs are not known: %s", error_text(error))
        with self._lock:
            self._ends[key].update(found)
            oldest = datetime.now(UTC) - _KEPT
            self._ends[key] = {at: end for at, end in self._ends[key].items() if at > oldest}
            self._asking.discard(key)


class _Watched:
    """The topics of one connection that somebody has looked at lately."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._changed = threading.Condition()
        self._wanted: dict[str, float] = {}
        self._stored: dict[TopicPartition, dict[str, int]] = {}
        self._state = LogState()
        self._began = -_FRESH
        self._retention_began = -_RETENTION_FRESH
        self._is_asking = False
        # Pipelines that may be overdue: when they were looked at, their topics and stored offsets.
        self._timed: dict[str, tuple[float, Sequence[str], Mapping[TopicPartition, int]]] = {}
        self._first_records = FirstRecords()
        self._first: Mapping[Place, datetime] = {}
        self._is_looking_up = False
        self._look_up_after = 0.0

    def watch(
        self,
        pipeline: str,
        topics: Sequence[str],
        stored: Mapping[TopicPartition, int],
        *,
        may_be_overdue: bool,
    ) -> None:
        """Remember topics, and the stored offsets of a pipeline that reads them."""
        now = time.monotonic()
        with self._changed:
            if may_be_overdue:
                self._timed[pipeline] = now, topics, stored
            self._wanted.update(dict.fromkeys(topics, now))
            for partition, offset in stored.items():
                self._stored.setdefault(partition, {})[pipeline] = offset

    def state(self) -> LogState:
        """Return what is known."""
        now = time.monotonic()
        with self._changed:
            known = self._state.logs.keys() | self._state.errors.keys()
            is_new = not self._wanted.keys() <= known
            if self._wanted and not self._is_asking and (is_new or now - self._began > _FRESH):
                self._is_asking, self._began = True, now
                threading.Thread(target=self._ask, name=f"exactbatch {self._conn_id}", daemon=True).start()
            if is_new:
                self._changed.wait(_FIRST)
            return replace(self._state, first=self._first)

    def _ask(self) -> None:
        with self._changed:
            now = time.monotonic()
            self._wanted = {topic: at for topic, at in self._wanted.items() if now - at < _WANTED}
            topics = sorted(self._wanted)
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
            self._timed = {name: each for name, each in self._timed.items() if now - each[0] < _WANTED}
            pipelines = [(topics, stored) for _, topics, stored in self._timed.values()]
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
            logger.warning("the ages of unprocessed records are not known: %s", error_text(error))
            self._look_up_after = now + _WANTED
        finally:
            with self._changed:
                self._is_looking_up = False

    def _answer(self, topics: Sequence[str]) -> LogState:
        properties = kafka_properties(airflow_connection(self._conn_id))
        broker = KafkaBroker(properties, settle=0)
        logs: dict[str, list[LogPartition]] = {topic: [] for topic in topics}
        errors: dict[str, str] = {}
        try:
            partitions = broker.partitions(topics)
        except TopicMissing:
            partitions = ()
            for topic in topics:
                try:
                    partitions += broker.partitions([topic])
                except TopicMissing as error:
                    del logs[topic]
                    errors[topic] = str(error)
        for partition in partitions:
            logs[partition.topic].append(partition)
        retention, written = self._state.retention, self._state.written
        if time.monotonic() - self._retention_began > _RETENTION_FRESH or set(topics) - set(retention):
            self._retention_began = time.monotonic()
            retention, written = self._retention(broker, partitions)
        return LogState(
            {topic: tuple(each) for topic, each in logs.items()},
            errors,
            datetime.now(UTC),
            retention,
            written,
        )

    def _retention(
        self, broker: KafkaBroker, partitions: Sequence[LogPartition]
    ) -> tuple[Mapping[str, timedelta | None], Mapping[TopicPartition, datetime]]:
        """Ask how long records are kept, and when the first unprocessed ones were written; lack of rights hides it."""
        try:
            limits = broker.retention(sorted({each.topic for each in partitions}))
            retention = {topic: limit.age for topic, limit in limits.items()}
            with self._changed:
                stored = {partition: min(each.values()) for partition, each in self._stored.items()}
            ages = [age for age in retention.values() if age is not None]
            behind = {
                log.topic_partition: stored[log.topic_partition]
                for log in partitions
                if retention.get(log.topic) is not None
                and log.earliest <= stored.get(log.topic_partition, -1) < log.high_watermark
            }
            since = datetime.now(UTC) - 2 * max(ages) if ages else datetime.now(UTC)
            return retention, broker.written_at(behind, max(since, datetime(1970, 1, 1, tzinfo=UTC)))
        except (ExactbatchError, OverflowError):
            return dict.fromkeys((each.topic for each in partitions), None), {}


def retention_left(state: LogState, stored: Mapping[TopicPartition, int], now: datetime) -> timedelta | None:
    """Return after what time retention may remove the first unprocessed record; None without a limit or lag. Pure."""
    left = [
        written + age - now
        for partition, written in state.written.items()
        if partition in stored and (age := state.retention.get(partition[0])) is not None
    ]
    return min(left) if left else None


def airflow_connection(conn_id: str) -> AirflowConnection:
    """Return a connection of Airflow. Raises ConfigurationError if it does not exist."""
    try:
        return AirflowConnection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"Airflow's API server finds no connection {conn_id!r}. Create it, or give the API server the "
            f"environment and the secrets backend that tasks have."
        ) from None


def error_text(error: BaseException) -> str:
    """Return a message for the page."""
    return str(error) if isinstance(error, ExactbatchError) else f"{type(error).__name__}"

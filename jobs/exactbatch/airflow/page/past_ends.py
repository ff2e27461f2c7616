"""Where logs ended at past times, which never changes: asked for by threads, and kept while somebody looks."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from exactbatch.airflow.connections import kafka_properties
from exactbatch.airflow.page.airflow_connections import airflow_connection, error_text
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import LogPartition
from exactbatch.offsets import PartitionKey

_KEPT: Final = timedelta(days=2)
_UNUSED: Final = 3600.0  # seconds after which the ends of logs are forgotten that nobody has asked for
_Logs = tuple[str, tuple[PartitionKey, ...]]  # the ID of Airflow's connection, and the partitions

logger = logging.getLogger(__name__)


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
        logger.warning("the ends of logs are not known: %s", error_text(error))
    oldest = datetime.now(UTC) - _KEPT
    with lock:
        known.ends = {at: end for at, end in (known.ends | found).items() if at > oldest}
        known.is_asking = False

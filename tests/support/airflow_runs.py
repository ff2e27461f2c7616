"""DAG runs and asset events, as tasks see them, for tests that call tasks without Airflow."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

T0: Final = datetime(2026, 1, 5, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)


@dataclass
class Run:
    """A DAG run, as its tasks see it."""

    run_id: str
    run_type: str = "scheduled"
    conf: dict[str, Any] | None = None
    clear_number: int = 0
    start_date: datetime = T0
    hour: int | None = None
    xcoms: dict[str, Any] = field(default_factory=dict)
    dag_id: str = ""
    task_id: str = "a_task"
    try_number: int = 1
    max_tries: int = 0

    @property
    def logical_date(self) -> datetime | None:
        return self.data_interval_start

    @property
    def data_interval_start(self) -> datetime | None:
        return None if self.hour is None else T0 + self.hour * HOUR

    @property
    def data_interval_end(self) -> datetime | None:
        return None if self.hour is None else T0 + (self.hour + 1) * HOUR

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, *_: Any, key: str, **__: Any) -> Any:
        return self.xcoms.get(key)


class Events:
    """What Airflow gives a task for the events of its assets; it has one asset."""

    extra: Any = None

    def __getitem__(self, _: Any) -> "Events":
        return self

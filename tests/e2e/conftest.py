"""The one Airflow that the end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exactbatch.local import LocalStack
from exactbatch.local.airflow import LocalAirflow
from exactbatch.settings import Settings
from support.one_airflow import running_airflow
from support.statsd_listener import StatsdListener, listening


@pytest.fixture(scope="session")
def airflow_settings(stack: LocalStack) -> Settings:
    """The stack's own database: Airflow's connections point there."""
    return Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)


@pytest.fixture(scope="session")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every driver waits after staging until this file exists."""
    return tmp_path_factory.mktemp("failpoint") / "go"


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the event logs of all drivers."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that receives OpenLineage's events of the DAG "quick"."""
    return tmp_path_factory.mktemp("lineage") / "events"


@pytest.fixture(scope="session")
def statsd() -> Iterator[StatsdListener]:
    """Receives the metrics that Airflow's tasks send."""
    with listening() as listener:
        yield listener


@pytest.fixture(scope="session")
def airflow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Airflow's DAGs and of the modules of their pipelines."""
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="session")
def one_airflow(
    stack: LocalStack,
    airflow_settings: Settings,
    hold: Path,
    event_log: Path,
    lineage: Path,
    statsd: StatsdListener,
    airflow_folder: Path,
) -> Iterator[LocalAirflow]:
    """Airflow with the project's DAGs and plugins and the hourly DAG, all paused."""
    with running_airflow(
        stack,
        airflow_settings,
        airflow_folder,
        hold=hold,
        event_log=event_log,
        lineage=lineage,
        environment=statsd.environment(),
    ) as airflow:
        yield airflow

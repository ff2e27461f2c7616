"""The one Airflow that the end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from exactbatch.local import LocalStack
from exactbatch.local.airflow import LocalAirflow
from exactbatch.settings import Settings
from support.one_airflow import running_airflow
from support.statsd_listener import StatsdListener, listening

_AIRFLOW: Final = pytest.StashKey[LocalAirflow]()


@pytest.hookimpl(trylast=True)  # after the fixtures, which use Airflow
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Airflow after the last end-to-end test: it takes most of a core, and the next tests of this worker may start
    another Airflow on the same stack."""
    is_last = nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent)
    if is_last and (airflow := item.session.stash.get(_AIRFLOW, None)) is not None:
        airflow.down()


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
    request: pytest.FixtureRequest,
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
        request.session.stash[_AIRFLOW] = airflow
        yield airflow

"""The one Airflow of a test run, with a few pipelines: it takes a minute to start, and most of a core to keep."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

from airflow import sdk

from exactbatch import Append, Json, Pipeline, ToTopic
from exactbatch.ledger import Ledger, migrate
from exactbatch.local import LocalStack
from exactbatch.local.airflow import LocalAirflow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.databases import execute_alone
from support.environment import HOME, ROOT
from support.jvm import quick_spark
from support.versioned_bundle import with_versioned_bundle

_OWNER: Final = "planted_login"
PASSWORD: Final = "planted-pa55word"  # of that login
KEY_PASSWORD: Final = "planted-k3yword"
ROLES: Final = ("viewer", "user", "op", "admin")
# No DAG file changes while the tests run. To look at one takes a process of its own; seconds, 30 by default.
_SELDOM: Final = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600"}
# So long a task whose supervisor is gone is taken for alive, seconds: 300 by default.
_SOON: Final = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
}
HOURLY: Final = Pipeline(
    name="hourly",
    topics=("hourly",),
    value=Json("id int, name text"),
    sink=Append("public.hourly"),
    spark_conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
)
QUICK: Final = replace(HOURLY, name="quick", topics=("quick",), sink=Append("public.quick"), spark_conf={})
# Its results go back to a topic.
LATE: Final = replace(
    HOURLY,
    name="late",
    topics=("late",),
    sink=Append("public.late"),
    forward=ToTopic("late_results", keyed_by=("id",)),
)
# The task group of another DAG.
GROUPED: Final = replace(
    HOURLY,
    name="grouped",
    topics=("grouped",),
    value=Json("origin int"),
    sink=Append("public.flight"),
    spark_conf={},
)
_MODULE: Final = """
from dataclasses import replace
from exactbatch import Append, Json, Limits, Pipeline, Tuning
hourly = {pipeline!r}
# Their connections have a wrong password.
refused_by_kafka = replace(hourly, name="refused_by_kafka")
refused_by_postgres = replace(hourly, name="refused_by_postgres")
"""
_DAG: Final = """
from exactbatch.airflow import Connections, pipeline_dag
from pipeline_of_hourly import hourly, refused_by_kafka, refused_by_postgres
dag = pipeline_dag(
    hourly,
    schedule="0 * * * *",
    connections=Connections(airflow="airflow_default"),
    replay_pool="exactbatch_hourly_replay",
)
kafka = pipeline_dag(refused_by_kafka, connections=Connections(kafka="kafka_refused"))
postgres = pipeline_dag(refused_by_postgres, connections=Connections(postgres="postgres_refused"), retries=0)
"""
_LATE_MODULE: Final = (
    "from exactbatch import Append, Json, Limits, Pipeline, ToTopic, Tuning\nlate = {pipeline!r}\n"
)
_LATE_DAG: Final = """
from exactbatch.airflow import pipeline_dag
from pipeline_of_late import late
dag = pipeline_dag(late)
"""
# Many tables; their function is in the module that the DAG file imports.
_TABLES_MODULE: Final = """
from exactbatch import Json, Pipeline, Tables, TopicPattern, Upsert

def table(t):
    return Pipeline(
        name=t.name, topics=(t.topic,), value=Json("id int, name text"), sink=Upsert(f"public.{t.table}", key=("id",))
    )

shop = Tables(
    name="shop",
    topics=TopicPattern(r"shop\\.public\\.(?P<table>.+)"),
    pipeline=table,
    at_a_time=1,
    spark_conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
)
"""
_TABLES_DAG: Final = """
from datetime import timedelta
from exactbatch.airflow import pipeline_dag
from tables_of_shop import shop
dag = pipeline_dag(shop, retries=1, retry_delay=timedelta(seconds=1))
"""
_GROUPED_MODULE: Final = (
    f"from exactbatch import Append, Json, Limits, Pipeline, Tuning\ngrouped = {GROUPED!r}\n"
)
# They are in a bundle whose folder has the name of its version.
_QUICK_MODULE: Final = f"from exactbatch import Append, Json, Limits, Pipeline, Tuning\nquick = {QUICK!r}\n"
_QUICK_DAG: Final = """
from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from exactbatch.airflow import Connections, pipeline_dag
from shop.orders import quick
connections = Connections(spark="spark_connect_default", spark_history_url="http://history.example.org")
dag = enable_lineage(pipeline_dag(quick, engine="connect", connections=connections))
"""


@contextmanager
def running_airflow(
    stack: LocalStack,
    settings: Settings,
    folder: Path,
    *,
    hold: Path,
    event_log: Path,
    lineage: Path,
    environment: Mapping[str, str],
) -> Iterator[LocalAirflow]:
    """Run Airflow with the project's DAGs and plugins and the hourly DAG, all paused, with secrets in its
    connections and a user for each role.

    Drivers wait after staging until the file `hold` exists, and write Spark's event log into `event_log`. A Spark
    Connect server runs next to it. `lineage` receives OpenLineage's events of the DAG "quick". `environment` is added.
    """
    stack.connect.configure({}, {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}, anywhere=True)
    with patch.dict(os.environ, {"SPARK_SUBMIT_OPTS": quick_spark(HOME)}):
        stack.connect.start()
    (folder / "dags").mkdir()
    for each in (ROOT / "dags").glob("*.py"):
        (folder / "dags" / each.name).symlink_to(each)
    (folder / "plugins").symlink_to(ROOT / "plugins")
    (folder / "dags" / "hourly.py").write_text(_DAG)
    (folder / "pipeline_of_hourly.py").write_text(_MODULE.format(pipeline=HOURLY))
    (folder / "dags" / "late.py").write_text(_LATE_DAG)
    write_late(folder, LATE)
    (folder / "dags" / "shop.py").write_text(_TABLES_DAG)
    (folder / "tables_of_shop.py").write_text(_TABLES_MODULE)
    (folder / "dags" / "departures.py").write_text(_read_own_dag())
    (folder / "pipeline_of_grouped.py").write_text(_GROUPED_MODULE)
    execute_alone(stack.postgres_dsn, f"create role {_OWNER} superuser login password '{PASSWORD}'")
    airflow = LocalAirflow(
        stack,
        folder / "dags",
        connections={
            "kafka_default": {
                "conn_type": "kafka",
                "extra": {**settings.kafka, "ssl.key.password": KEY_PASSWORD},
            },
            "postgres_default": {
                "conn_type": "postgres",
                "host": "127.0.0.1",
                "port": stack.postgres.port,
                "schema": "exactbatch",
                "login": _OWNER,
                "password": PASSWORD,
            },
        },
        environment={
            "EXACTBATCH_FAILPOINTS": f"job.after_stage=hold:{hold}",
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            # Not by a spark-defaults.conf: its folder would be in the class path, and the archive of another one.
            "SPARK_SUBMIT_OPTS": f"{quick_spark(HOME)} -Dspark.eventLog.enabled=true "
            f"-Dspark.eventLog.compress=false -Dspark.eventLog.dir=file://{event_log}",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(lineage), "append": True}
            ),
            "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
            **_SELDOM,
            **_SOON,
            **with_versioned_bundle(
                folder, {"shop/orders.py": _QUICK_MODULE, "dag_of_orders.py": _QUICK_DAG}
            ),
            **environment,
        },
        anywhere=True,  # another worker's may look for a port at the same moment
    )
    try:
        airflow.up()
        yield airflow
    finally:
        airflow.down()


def _read_own_dag() -> str:
    """Return the DAG file of the page about task groups, with a pipeline that is small and runs on Spark Connect."""
    text: str
    (text, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/own-dag.md").read_text(), re.DOTALL)
    for old, new in {
        "from pipelines.flights import flights": "from pipeline_of_grouped import grouped",
        "Connections()": 'Connections(spark="spark_connect_default")',
        "group(flights,": 'group(grouped, engine="connect",',
    }.items():
        assert text.count(old) == 1, f"the page's DAG has changed: {old}"
        text = text.replace(old, new)
    if not hasattr(sdk, "CronDataIntervalTimetable"):  # 3.0 and 3.1, as the page says
        text = text.replace("import CronDataIntervalTimetable, dag, task", "import dag, task")
        text = "from airflow.timetables.interval import CronDataIntervalTimetable\n" + text
    return text


def write_late(folder: Path, pipeline: Pipeline) -> None:
    """Make this the pipeline of the DAG "late", from its next task on."""
    (folder / "pipeline_of_late.py").write_text(_LATE_MODULE.format(pipeline=pipeline))


def register(settings: Settings, pipeline: Pipeline) -> None:
    """Make the ledger know a pipeline, and make a ledger if there is none."""
    connection = connect(settings.postgres, application="tests")
    migrate(connection)
    with transaction(connection):
        Ledger(connection).registry.register(pipeline, share_topics=True)
    connection.close()

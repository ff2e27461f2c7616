"""The parts of the Pipelines page that need no server: its plugin, its files, and what it makes of values."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from uuid import UUID

import pytest

from exactbatch import Json, Pipeline, Upsert
from exactbatch.airflow import Connections, pipeline_dag
from exactbatch.airflow.page import views
from exactbatch.airflow.page.brokers import LogState, compute_retention_left
from exactbatch.airflow.page.dags import stored_in
from exactbatch.airflow.page.views import build_partition_views, build_record_view
from exactbatch.ledger.overview_rows import ListedBatch, PartitionPosition, RejectedRecord
from exactbatch.ledger.row_types import Batch
from exactbatch.operations.overview import stored_at
from support.airflow_versions import DagSerialization
from support.logs import log

ROOT = Path(__file__).parents[2]
STATIC = Path(views.__file__).parent / "static"
PLUGIN = ROOT / "plugins" / "exactbatch_page.py"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENTRY_POINT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "airflow.plugins"
]


# What no rule looks at has any value.
ADVANCE = Batch(
    *(7, UUID(int=7), "p", "advance", "schedule", "p", "r", 0, 0, None, "committed", 3, 3, 0, 0, 0, NOW, NOW),
    stages=None,
    application_id=None,
)


def loaded(monkeypatch, *entry_points):
    """The plugin of the project's folder, in an environment with these entry points."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints(entry_points))
    spec = importlib.util.spec_from_file_location("exactbatch_page", PLUGIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [name for name in vars(module) if name == "ExactbatchPage"]


def test_the_page_is_registered_by_the_package_or_by_the_folder(monkeypatch):
    [(name, value)] = ENTRY_POINT.items()
    installed = EntryPoint(name, value, "airflow.plugins")
    assert installed.load().name == "exactbatch"
    assert loaded(monkeypatch, installed) == []
    assert loaded(monkeypatch, EntryPoint("other", "a:b", "airflow.plugins")) == ["ExactbatchPage"]


def test_a_process_that_only_loads_plugins_does_not_load_the_application():
    code = (
        "import sys; import exactbatch.airflow.page.plugin; "
        "print([name for name in sys.modules if name in ('kafka', 'exactbatch.airflow.page.routes')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("file", sorted(STATIC.glob("*")), ids=lambda file: file.name)
def test_a_file_parses_no_text_as_html_and_names_no_other_server(file):
    text = file.read_text()
    addresses = set(re.findall(r"https?://[\w.]+", text))
    assert addresses <= {"http://www.w3.org", "https://github.com"}, addresses
    if not file.name.startswith("uPlot"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert not re.search(r"""<[^>]+ (style|on\w+)=["']""", text)


def test_the_chart_of_the_lag_begins_after_batches_that_are_folded():
    """Nobody knows any more how many offsets these had."""
    hours = [NOW + timedelta(hours=number) for number in range(5)]
    position = PartitionPosition("p", "t", UUID(int=1), 0, 0, 700, NOW, None)
    newest = [
        ListedBatch(replace(ADVANCE, committed_at=at), None, offsets=offsets)
        for at, offsets in zip(hours[::-1], (100, 100, None, None, None), strict=True)
    ]
    assert stored_at([position], newest, hours) == {hours[2]: 500, hours[3]: 600, hours[4]: 700}


def test_the_licence_of_the_charts_is_with_them():
    assert "The MIT License" in (STATIC / "uPlot-LICENSE.txt").read_text()
    [script] = STATIC.glob("uPlot-*.js")
    assert f"static/{script.name}" in (STATIC / "index.html").read_text()
    assert (
        script.name.removeprefix("uPlot-").removesuffix(".min.js") in (ROOT / "docs" / "page.md").read_text()
    )


def record(value, size):
    return RejectedRecord("t", UUID(int=1), 0, 7, "why", 3, "[]", None, None, value, size)


def test_a_value_is_text_unless_it_is_not_utf_8():
    assert build_record_view(record("ä".encode(), 2))["value"] == {"text": "ä", "bytes": 2, "is_cut": False}
    assert build_record_view(record("aä".encode()[:2], 9))["value"] == {
        "text": "a",
        "bytes": 9,
        "is_cut": True,
    }
    assert build_record_view(record(b"\xff", 1))["value"] == {"base64": "/w==", "bytes": 1, "is_cut": False}
    assert build_record_view(record(None, None))["value"] is None


def test_retention_counts_from_the_first_unprocessed_record():
    state = LogState(
        retention={"t": timedelta(days=7), "kept": None},
        written={("t", 0): NOW - timedelta(days=6), ("t", 1): NOW, ("kept", 0): NOW - timedelta(days=99)},
    )
    stored = {("t", 0): 5, ("t", 1): 5, ("kept", 0): 1}
    assert compute_retention_left(state, stored, NOW) == timedelta(days=1)
    assert compute_retention_left(state, {("kept", 0): 1}, NOW) is None


def test_the_log_of_a_topic_that_was_created_again_is_not_shown():
    position = PartitionPosition("p", "t", UUID(int=1), 0, 0, 50, NOW, None)
    again = log(topic_id=UUID(int=2), last_stable=9)
    [view] = build_partition_views([position], LogState(logs={"t": (again,)}))
    assert view["high_watermark"] is None


@pytest.mark.parametrize("key", [None, Json("id int")])
@pytest.mark.parametrize("engine", ["spark-submit", "connect"])
def test_a_stored_dag_has_the_connections_and_whether_a_compacted_topic_can_be_replayed(
    monkeypatch, key, engine
):
    pipeline = Pipeline(
        name="stored",
        topics=("t",),
        value=Json("id int"),
        message_key=key,
        sink=Upsert("public.t", key=("id",)),
    )
    monkeypatch.setattr(
        "exactbatch.airflow.task_definitions.find_reference", lambda _: "pipelines.stored:stored"
    )
    dag = pipeline_dag(pipeline, connections=Connections(kafka="k", postgres="p"), engine=engine)
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    assert stored_in(stored) == [("k", "p", key is not None, None, False, "")]


def test_a_batch_shows_its_stages_in_their_order_and_links_its_application():
    batch = replace(
        ADVANCE,
        stages={"plan": 12, "stage": 3400, "start": 5000, "publish": 80, "of a later version": 1},
        application_id="app-1",
    )
    shown = views.build_batch_view(
        ListedBatch(batch, None), {}, spark_history_url="https://h", may_read_logs=True
    )
    assert shown["stages"] == [["plan", 0.012], ["start", 5.0], ["stage", 3.4], ["publish", 0.08]]
    assert (shown["application"], shown["application_url"]) == ("app-1", "https://h/history/app-1/")
    before = replace(batch, stages=None, application_id=None)  # of an older version
    shown = views.build_batch_view(
        ListedBatch(before, None), {}, spark_history_url="https://h", may_read_logs=True
    )
    assert (shown["stages"], shown["application"], shown["application_url"]) == ([], None, None)

"""What the commands make of odd names, encodings, readers of their output, and nothing to do."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from exactbatch import Append, Pipeline
from exactbatch.cli.app import app
from exactbatch.cli.console import confirm, print_json
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.staged_batches import Batches
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]
Command = Callable[..., Result]


@pytest.fixture
def command(settings, monkeypatch):
    """Run `exactbatch …` for a pipeline, in this process."""
    module = ModuleType("pipelines_of_commands")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(pipeline: Pipeline, name: str, *options: str, charset: str = "utf-8") -> Result:
        module.p = pipeline  # type: ignore[attr-defined]
        return CliRunner(charset=charset).invoke(app, [name, f"{module.__name__}:p", *options])

    return run


@pytest.fixture
def pipeline(make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(0), record(1))
    return make_pipeline(topic)


def test_a_newer_ledger_gets_no_pipeline_of_an_older_program(pipeline, command, connection):
    with transaction(connection) as cursor:
        cursor.execute("insert into exactbatch.schema_version values (99)")
    for name in ("register", "status"):
        done = command(replace(pipeline, name="another", sink=Append("public.another")), name)
        assert (done.exit_code, "the newer version" in " ".join(done.stderr.split())) == (42, True), name
    with transaction(connection):
        assert Ledger(connection).registry._names() == pipeline.name


@pytest.mark.parametrize("table", ['public."x[/b]"', 'public."x[red]"', 'public."x[/]"'])
def test_names_are_no_markup(pipeline, command, connection, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "200")
    named = replace(pipeline, name="named", sink=Append(table))
    for name, *options in (
        ("register", "--share-topics"),
        ("status",),
        ("plan",),
    ):
        done = command(named, name, *options)
        assert done.exit_code == 0, done.output
        assert name == "plan" or table in done.stdout
    assert "already" in command(named, "register", charset="latin-1").stdout  # it has no arrow


def test_json_is_printed_of_nothing_too(pipeline, command, connection):
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id, first_offset) "
            "select %s, %s, 0, 2, %s, 0",
            (pipeline.name, pipeline.topic_names[0], str(_topic_id(command, pipeline))),
        )
    early = ("--start", "2020-01-01", "--end", "2020-01-02")
    assert json.loads(command(pipeline, "replay", *early, "--json").stdout) == {"batch_id": None}
    assert json.loads(command(pipeline, "rejects", "--replay", "--json").stdout) == {"batch_id": None}


def _topic_id(command: Command, pipeline: Pipeline) -> str:
    return str(json.loads(command(pipeline, "plan", "--json").stdout)["ranges"][0]["topic_id"])


def test_reasons_are_limited_as_rejects_are(pipeline, command, connection):
    """A reason may tell the value: then there are as many as records."""
    Batches(connection, replace(pipeline, topics=("t",), name="r", sink=Append("public.r"))).run((1, "x"))
    with transaction(connection) as cursor:
        cursor.execute(
            'insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, '
            "reason, batch_id) select 'r', gen_random_uuid(), 0, n, 't', '[]', 'found ' || greatest(n, 3), 1 "
            "from generate_series(1, 50) n"
        )
    told = json.loads(
        command(replace(pipeline, name="r", sink=Append("public.r")), "rejects", "--json").stdout
    )
    assert (told["records"], told["all_reasons"], len(told["reasons"])) == (50, 48, 20)
    assert told["reasons"][0]["records"] == 3
    shown = command(replace(pipeline, name="r", sink=Append("public.r")), "rejects", "--limit", "2").stdout
    assert "rejected records of r: 50" in shown
    assert "46 more reasons" in shown


def test_mistakes_in_what_is_asked_for_are_told(pipeline, command):
    done = command(pipeline, "boundaries", "--forget", "2026-01-06", "2026-01-05")
    assert (done.exit_code, "is before START" in " ".join(done.stderr.split())) == (2, True)
    done = command(pipeline, "register", "--rename", pipeline.name, "--yes")
    assert (done.exit_code, "the name that it has" in " ".join(done.stderr.split())) == (42, True)


_IN_A_FRESH_INTERPRETER = """
import json, sys
from typer.testing import CliRunner
from exactbatch.cli.app import app
for command in ("status", "lag", "batches", "doctor", "plan", "run", "audit"):
    done = CliRunner().invoke(app, [command, "pipeline_of_test:pipeline"])
    # The auditor reads the log, then finds no target: nothing was loaded yet.
    assert done.exit_code == (42 if command == "audit" else 0), done.output
print(json.dumps(list(sys.modules)))
"""


def test_commands_import_neither_spark_nor_airflow_nor_local_stack(
    make_topic, make_pipeline, settings, tmp_path
):
    topic = make_topic()  # empty, so that `run` only plans
    make_pipeline(topic)
    (tmp_path / "pipeline_of_test.py").write_text(
        "from exactbatch import Append, Json, Pipeline\n"
        f"pipeline = Pipeline(name={topic.name!r}, topics=({topic.name!r},), "
        f"value=Json('id int, name text'), sink=Append('public.\"{topic.name}\"'))\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_FRESH_INTERPRETER],
        env={**os.environ, **settings.as_environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout.splitlines()[-1])
    unwanted = ("exactbatch.local", "pyspark", "airflow")
    assert [name for name in imported if name.startswith(unwanted)] == []


class _Person(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_question_is_no_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", _Person("y\nn\n"))
    confirm("Go on?", yes=False)
    with pytest.raises(typer.Abort):
        confirm("Go on?", yes=False)
    written = capsys.readouterr()
    assert (written.out.strip(), written.err.count("Go on?")) == ("", 2)


def test_a_reader_that_has_enough_is_no_error(monkeypatch):
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(typer.Exit):
            print_json({"many": ["lines"] * 100_000})

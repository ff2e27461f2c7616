"""`exactbatch batches`: the history of a pipeline, page by page."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from exactbatch import Append
from exactbatch.cli import load_pipeline
from exactbatch.cli.app import app
from exactbatch.cli.console import out
from exactbatch.errors import KafkaUnavailable, TargetMismatch
from exactbatch.ledger import DagRun, Ledger
from exactbatch.model import Plan
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from support.staged_batches import ID


@pytest.fixture
def listed(settings, monkeypatch):
    """Run `exactbatch batches p … --json`, and return the batches."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(*options: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(app, ["batches", "p", *options, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["batches"]

    return run


@pytest.fixture
def history(batches, connection):
    """Batches 1 and 2 committed, 3 a replay, 4 superseded, 5 planned and failing."""
    made = batches("id int", Append("public.p"))
    made.run((1,), (2,))
    made.run((3,))
    made.replay((0, 0, 2))
    ledger = Ledger(connection)
    for error, run in (
        (KafkaUnavailable("no broker"), None),
        (TargetMismatch("no column"), DagRun("p", "run_5")),
    ):
        with transaction(connection):
            ranges = tuple(OffsetRange("t", 0, 3 + 2 * each, 4 + 2 * each, ID) for each in range(5))
            batch_id = ledger.plans.write_advance(
                made.pipeline, Plan(seeds=(), losses=(), ranges=ranges), origin="cli", run=run
            )
            for _ in range(2):
                ledger.batches.record_failure(ledger.batches.read(batch_id), error)
    return made


def test_batches_are_listed_newest_first_with_what_the_ledger_knows(listed, history):
    told = listed()
    assert [each["batch_id"] for each in told] == [5, 4, 3, 2, 1]
    assert [each["status"] for each in told] == ["planned", "superseded", *["committed"] * 3]
    first = told[-1]
    assert (first["records"], first["rows"], first["rejected"], first["origin"]) == (2, 2, 0, "cli")
    assert first["seconds"] > 0
    assert [(each["from_offset"], each["until_offset"]) for each in first["first_ranges"]] == [(0, 2)]
    planned = told[0]
    assert (planned["seconds"], planned["run_id"], planned["ranges"]) == (None, "run_5", 5)
    assert [each["from_offset"] for each in planned["first_ranges"]] == [3, 5, 7]
    assert (planned["failure"]["error"], planned["failure"]["failures"]) == ("TargetMismatch", 2)
    # Nobody tries the superseded batch again; the planned one fails in the same way each time.
    assert [each["retry_helps"] for each in told] == [False, None, None, None, None]
    assert told[1]["failure"]["error"] == "KafkaUnavailable"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--limit", "2"], [5, 4]),
        (["--limit", "2", "--below", "4"], [3, 2]),
        (["--status", "committed"], [3, 2, 1]),
        (["--status", "superseded"], [4]),
        (["--kind", "replay"], [3]),
        (["--kind", "advance", "--status", "committed"], [2, 1]),
        (["--kind", "replay", "--status", "planned"], []),
    ],
    ids=lambda each: " ".join(map(str, each)),
)
def test_a_part_of_the_batches(listed, history, options, ids):
    assert [each["batch_id"] for each in listed(*options)] == ids


def test_the_table_says_whether_a_retry_helps(listed, history, monkeypatch):
    monkeypatch.setattr(out, "_width", 200)
    shown = " ".join(CliRunner().invoke(app, ["batches", "p", "--limit", "2"]).stdout.split())
    assert "cli run_5: t[0] 3–4, t[0] 5–6, t[0] 7–8 and 2 more" in shown
    assert "batch 5 (planned) has failed 2 times" in shown
    assert "TargetMismatch: no column A retry does not help: correct the cause." in shown
    assert "KafkaUnavailable: no broker older ones: --below 4" in shown


def test_an_unknown_pipeline_or_state_is_refused(listed, history):
    done = CliRunner().invoke(app, ["batches", "q"])
    assert (done.exit_code, "which has p" in " ".join(done.stderr.split())) == (2, True)
    done = CliRunner().invoke(app, ["coverage", "q"])
    assert (done.exit_code, "which has p" in " ".join(done.stderr.split())) == (2, True)
    assert CliRunner().invoke(app, ["batches", "p", "--status", "done"]).exit_code == 2


def test_a_pipeline_that_is_not_registered_is_no_wrong_name(listed, history, monkeypatch):
    monkeypatch.setattr(load_pipeline, "pipeline_names", lambda _: ["q"])
    for command in ("batches", "coverage", "lag"):
        done = CliRunner().invoke(app, [command, "q"])
        assert (done.exit_code, "NotRegistered" in done.stderr) == (42, True), command

"""`exactbatch coverage`: strips in a terminal."""

import json

import pytest
from typer.testing import CliRunner

from exactbatch import Append, Json, Pipeline
from exactbatch.cli import coverage as command
from exactbatch.cli.app import app
from exactbatch.cli.console import out
from exactbatch.postgres.connection import transaction
from support.page_ledger import SIZE, fill_story
from support.staged_batches import ID


@pytest.fixture
def coverage(connection, settings, monkeypatch):
    """Run `exactbatch coverage story …`."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(out, "_width", 42)  # 40 steps: one for each batch of the story
    pipeline = Pipeline(
        name="story", topics=("story",), value=Json("id int, name text"), sink=Append("public.story")
    )
    fill_story(connection, pipeline, ID)

    def run(*options: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, ["coverage", "story", *options])
        assert done.exit_code == status, done.output
        return done.stdout

    return run


def strip_of(shown: str, partition: int) -> str:
    lines = shown.splitlines()
    return lines[lines.index(f"story[{partition}]") + 1]


def test_each_step_has_the_sign_of_what_covers_it(coverage):
    shown = coverage("--until", str(40 * SIZE))
    first = strip_of(shown, 0)
    assert len(first) == 40
    assert (first[4], first[10], first[11], first[20]) == ("x", "R", "R", "B")
    assert first[:4] == "████"
    assert set(strip_of(shown, 1)) <= {"█", "r"}
    assert "x lost" in shown
    assert "█ batch" in shown
    assert "! gap" not in shown


def test_what_is_in_flight_is_shown_beyond_the_stored_offset(coverage):
    shown = coverage("--from", str(39 * SIZE), "--until", str(42 * SIZE), "--partition", "story:0")
    strip = strip_of(shown, 0)
    assert strip.startswith("█")
    assert "·" in strip
    assert strip.endswith(" ")
    assert "story[1]" not in shown


def test_a_gap_is_found_and_has_its_exit_status(coverage, connection):
    assert "no gap" in coverage("--gaps")
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(
            "delete from exactbatch.coverage where partition = 1 and lower(offsets) = %s", (7 * SIZE,)
        )
    shown = coverage("--gaps", status=3)
    assert f"gap in story[1]: {7 * SIZE} to {8 * SIZE}" in shown
    assert strip_of(shown, 1)[7] == "!"
    (gap,) = json.loads(coverage("--gaps", "--json", status=3))["gaps"]
    assert (gap["topic"], gap["partition"], gap["from_offset"]) == ("story", 1, 7 * SIZE)


def test_gaps_are_found_in_partitions_that_are_not_shown(coverage, connection, monkeypatch):
    monkeypatch.setattr(command, "_MOST", 1)
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(
            "delete from exactbatch.coverage where partition = 2 and lower(offsets) = %s", (7 * SIZE,)
        )
    shown = coverage("--gaps", status=3)
    assert f"gap in story[2]: {7 * SIZE} to {8 * SIZE}" in shown
    assert "story[1]" not in shown
    assert "2 more partitions: name them" in shown
    assert "no gap" in coverage("--gaps", "--partition", "story:0")


def test_json_has_the_segments(coverage):
    told = json.loads(coverage("--json", "--partition", "story:0"))
    (strip,) = told["strips"]
    assert {each["kind"] for each in strip["segments"] + strip["exceptions"]} >= {"batch", "loss", "replay"}
    assert told["gaps"] == []


def test_an_unknown_partition_is_refused(coverage):
    assert coverage("--partition", "story:9", status=2) == ""


def test_offsets_that_span_nothing_are_refused(coverage):
    shown = coverage("--from", "50", "--until", "50", status=2)
    assert "nothing is processed" not in shown


def test_a_pipeline_that_has_processed_nothing_is_no_error(coverage, connection):
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")  # a stored offset moves forward only
        cursor.execute("update exactbatch.stored_offset set next_offset = first_offset")
    assert "nothing is processed yet" in coverage()

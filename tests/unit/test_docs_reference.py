"""The reference has every command, every environment variable and every field of the asset event."""

import json
import re
from dataclasses import fields
from datetime import UTC, datetime
from importlib import import_module
from uuid import uuid4

import pytest

from exactbatch.ledger import Batch
from exactbatch.offsets import OffsetRange
from exactbatch.operations.report import Missed, Report
from support.environment import DOCS, JOBS

REFERENCE = DOCS / "reference"
RANGE = OffsetRange("flights", 0, 1000, 2200, uuid4())
VARIABLE = re.compile(r"\bEXACTBATCH_[A-Z_]*[A-Z]\b")


def tables(page):
    """Return the tables of a page as {heading: rows}; a row is a list of cells, without the two rows of the head."""
    found, heading = {}, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append(cells)
    return {heading: rows[2:] for heading, rows in found.items()}


def first_column(rows):
    return [row[0].strip("`") for row in rows]


def test_the_commands_are_as_the_program_has_them(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "site")
    commands = import_module("commands")
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run `make reference`"


def test_every_command_is_in_the_reference():
    """The page is compared with itself above; this would fail if a command were left out of both."""
    from exactbatch.cli.app import app

    headings = re.findall(r"^## exactbatch (.+)$", (REFERENCE / "commands.md").read_text(), re.MULTILINE)
    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    assert {heading.split()[0] for heading in headings} == names


def test_every_environment_variable_is_in_the_reference():
    read = {name for file in JOBS.rglob("*.py") for name in VARIABLE.findall(file.read_text("utf-8"))}
    rows = [row for of_heading in tables(REFERENCE / "environment.md").values() for row in of_heading]
    documented = {name for name in first_column(rows) if name.startswith("EXACTBATCH_")}
    assert documented == read


def batch():
    values = dict.fromkeys((field.name for field in fields(Batch)), 1)
    planned, committed = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
    return Batch(**{**values, "planned_at": planned, "committed_at": committed})


@pytest.fixture
def event():
    """What report_batch sends: see exactbatch.airflow.tasks.report_batch."""
    missed = (Missed(batch(), (RANGE,)),)
    report = Report(batch(), (RANGE,), (1200,), stored={}, partitions=(), missed=missed)
    return {**report.as_json(), "beyond_stored": [str(RANGE)]}


def test_the_fields_of_the_asset_event_are_in_the_reference(event):
    page = tables(REFERENCE / "asset-event.md")
    assert first_column(page["Fields of the event"]) == list(event)
    assert first_column(page["Fields of a range"]) == list(event["ranges"][0])


def test_the_fields_of_a_missed_batch_are_in_the_reference(event):
    text = (REFERENCE / "asset-event.md").read_text(encoding="utf-8")
    section = text.partition("## Fields of a missed batch")[2].partition("## ")[0]
    assert re.findall(r"`(\w+)`", section.partition(" has the fields ")[2]) == list(event["missed"][0])


def test_the_example_of_the_asset_event_has_its_fields_and_types(event):
    text = (REFERENCE / "asset-event.md").read_text(encoding="utf-8")
    example = json.loads(re.search(r"```json\n(.+?)```", text, re.DOTALL)[1])
    assert list(example) == list(event)
    assert list(example["ranges"][0]) == list(event["ranges"][0])
    assert example["records"] == example["rows"] + example["rejected"] + example["dropped"]

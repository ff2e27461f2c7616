"""The code in the documentation works: Python runs, commands and their options exist, JSON is JSON.

support.documentation says how a page marks a block that is only a fragment. test_docs_sql.py runs the SQL.
"""

import ast
import json
import re
import shlex
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import typer
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import exactbatch
import exactbatch.airflow
from exactbatch.cli.app import COMMANDS as SUMMARIES
from exactbatch.cli.app import app, load_command
from exactbatch.local.commands import app as local_app
from pipelines.flights import flights
from support.documentation import PAGES, blocks
from support.environment import DOCS, JOBS, ROOT

# What the blocks of a page may use without importing it: what it is about, and what the text around it names.
NAMES = {
    **{name: getattr(exactbatch, name) for name in exactbatch.__all__},
    **{name: getattr(exactbatch.airflow, name) for name in exactbatch.airflow.__all__},
    **{"timedelta": timedelta, "replace": replace, "Path": Path, "pa": pa, "pc": pc, "notify": print},
}
AVRO = '{"type": "record", "name": "reading", "fields": [{"name": "id", "type": "long"}]}'
PYTHON = {page: list(found) for page, found in groupby(blocks("python"), key=lambda block: block.page)}
CONSOLE = [
    pytest.param(command, id=f"{block}: {command}")
    for block in blocks("console")
    for line in re.findall(r"^\$ (.+?)(?: +# .*)?$", block.code.replace("\\\n", " "), re.MULTILINE)
    for command in line.split(" && ")
]
COMMANDS = {**typer.main.get_command(app).commands, **{name: load_command(name) for name in SUMMARIES}}
LOCAL = typer.main.get_command(local_app).commands
# Postgres shows these names of connections in pg_stat_activity.
CONNECTIONS = {"audit", "launch", "plan", "publish", "report", "status"}


def descriptors():
    """Return what protoc would write for events.proto: package shop; message Event with a User, who has an id."""
    file = FileDescriptorSet().file.add(name="events.proto", package="shop", syntax="proto3")
    file.message_type.add(name="User").field.add(
        name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL"
    )
    file.message_type.add(name="Event").field.add(
        name="user", number=1, type="TYPE_MESSAGE", type_name=".shop.User", label="LABEL_OPTIONAL"
    )
    return FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page, tmp_path, monkeypatch):
    """The blocks of a page run one after the other, in a folder with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reading.avsc").write_text(AVRO)
    (tmp_path / "events.desc").write_bytes(descriptors())
    module = ModuleType("page")
    (tmp_path / "page.py").touch()  # a DAG looks for the module that has its pipeline, and could import it
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "page", module)
    vars(module).update(NAMES, flights=flights, __file__=str(tmp_path / "page.py"))
    for block in PYTHON[page]:
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), vars(module))


@pytest.mark.parametrize("block", list(blocks("json")), ids=str)
def test_json_is_json(block):
    json.loads(block.code)


@pytest.mark.parametrize("command", CONSOLE)
def test_a_command_exists_and_takes_its_arguments(command, tmp_path, monkeypatch):
    """The commands of exactbatch and make; others are those of other programs."""
    program, *arguments = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    for records in [each for each in arguments if each.endswith(".jsonl")]:
        Path(records).touch()  # the page has made it
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {each for each in arguments if "=" not in each} <= set(targets)
    elif program.rpartition("/")[2] == "exactbatch":
        parse(arguments)


def parse(arguments):
    """Parse arguments as the command would. Raises a UsageError for an unknown or a missing one."""
    name, *rest = arguments
    if name.startswith("-"):
        typer.main.get_command(app).make_context("exactbatch", list(arguments), resilient_parsing=True)
    elif name == "local":
        LOCAL[rest[0]].make_context(f"local {rest[0]}", rest[1:])
    else:
        COMMANDS[name].make_context(name, rest)


def mentions(text):
    """Yield the command lines of exactbatch that a text has in backticks, as lists of words, and where it is not in
    backticks, those whose first word is a command."""
    for quoted in re.findall(r"`exactbatch ([^`]+)`", text):
        yield quoted.split()
    for plain in re.findall(r"(?<![`\w./-])exactbatch ([a-z]+(?: [\w…{}<>.-]+)*? --[\w-]+)", text):
        if plain.split()[0] in COMMANDS:
            yield plain.split()


def check_mention(words):
    """Check a command line in a sentence, which may leave out arguments: the command and its options exist."""
    name, *rest = words
    if name in ("…", "COMMAND") or (name in CONNECTIONS and not rest):
        return
    known = {"--install-completion", "--show-completion", "--help"}
    if not name.startswith("--"):
        command = COMMANDS[name]
        if name == "local" and rest and rest[0] != "…":
            command = LOCAL[rest[0]]
        known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    options = {word for word in words if word.startswith("--")}
    assert options <= known, f"exactbatch {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_exist(page):
    for words in mentions(page.read_text(encoding="utf-8")):
        check_mention(words)


def strings(module):
    """Yield the strings of a module, with … for what a message puts in."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def test_commands_in_messages_exist():
    found = [
        (module, words)
        for module in sorted((JOBS / "exactbatch").rglob("*.py"))
        for text in strings(module)
        for words in mentions(text)
    ]
    assert len(found) > 50
    for module, words in found:
        try:
            check_mention(words)
        except (KeyError, AssertionError) as error:
            raise AssertionError(f"{module.relative_to(ROOT)}: exactbatch {' '.join(words)}") from error


# A password in an argument is in the shell's history and in the list of processes.
PASSWORD_IN_ARGUMENT = re.compile(
    r"--(?:conn-)?password[ =]|-c [\"'][^\"'\n]*\bpassword '|\bPGPASSWORD=\S+ |psql [^\n]*password=|-u \S+:\S+ http"
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md", DOCS / "roles.sql"], ids=str)
def test_no_command_has_a_password_in_an_argument(page):
    assert PASSWORD_IN_ARGUMENT.findall(page.read_text()) == []

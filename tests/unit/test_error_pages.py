"""Each error class has a page, `exactbatch explain` shows it, and messages name it."""

import ast
import inspect
import json
import logging
import re
from importlib import import_module
from pkgutil import walk_packages

import pytest
from typer.testing import CliRunner

import exactbatch
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.versions import AirflowFailException
from exactbatch.cli.app import app
from exactbatch.errors import (
    ExactbatchError,
    KafkaUnavailable,
    OffsetsLost,
    RetryableError,
    TablesUnfinished,
    WrongUsage,
)
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.explanation import (
    explain,
    explained_errors,
    explained_topics,
    find_hint,
    hint,
    page_name,
)
from support.environment import DOCS, JOBS

PAGES = DOCS / "errors"
SECTIONS = ["What you see", "Why it happens", "What was written", "Find the cause", "Recover"]
PREVENTION = "Prevent it"  # the last section, where there is more to say than the causes do
RETRIED = {
    True: "**Retryable**: Airflow retries the task; a command has exit status 1.",
    False: "**Terminal**: no retries in Airflow; a command has exit status 42.",
}


def subclasses(class_):
    return {class_, *(each for direct in class_.__subclasses__() for each in subclasses(direct))}


def error_classes():
    """Return all error classes that have a page: all but the two bases and WrongUsage, wherever they are defined."""
    for module in walk_packages(exactbatch.__path__, "exactbatch."):
        source = JOBS / (module.name.replace(".", "/") + ".py")
        if source.is_file() and re.search(
            r"^class \w+\((\w*Error|ExactbatchError)\):", source.read_text(), re.M
        ):
            import_module(module.name)
    own = {each for each in subclasses(ExactbatchError) if each.__module__.startswith("exactbatch.")}
    return sorted(own - {ExactbatchError, RetryableError, WrongUsage}, key=lambda each: each.__name__)


ERRORS = error_classes()


def decode_text(error):
    return (PAGES / page_name(error.__name__)).read_text(encoding="utf-8")


def test_every_error_class_has_a_page_and_every_page_has_a_class():
    names = [error.__name__ for error in ERRORS]
    assert {"OffsetsLost", "LocalStackError", "PortTaken"} < set(names)
    assert sorted(path.name for path in PAGES.iterdir()) == sorted(map(page_name, names))
    assert explained_errors() == names


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_a_page_begins_with_what_the_class_says(error):
    title, meaning, retried, *_ = decode_text(error).split("\n\n")
    assert title == f"# {error.__name__}"
    assert " ".join(meaning.split()) == " ".join(inspect.getdoc(error).split())
    assert retried == RETRIED[error.retryable]
    assert f"exit status {exit_status(error('…'))}." in retried


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_a_page_has_all_sections(error):
    found = explain(error.__name__).sections
    assert list(found) in (SECTIONS, [*SECTIONS, PREVENTION])
    assert all(len(text) > 5 for text in found.values())


@pytest.fixture(scope="module")
def messages():
    """Return a pattern for each message of the code: its fixed text, with anything between.

    A message is a string of at least 40 fixed characters; shorter strings would match by chance.
    """
    patterns = []
    for source in JOBS.rglob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        strings = [node.values for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        inner = {id(part) for parts in strings for part in parts}
        strings += [
            [node] for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in inner
        ]
        for parts in strings:
            fixed = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if sum(len(text) for text in fixed if isinstance(text, str)) >= 40:
                pattern = "".join(".*?" if text is None else re.escape(text) for text in fixed)
                patterns.append(re.compile(pattern))
    return patterns


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_the_message_of_a_page_is_one_of_the_code(error, messages):
    shown = " ".join(re.search(r"```text\n(.+?)```", decode_text(error), re.DOTALL)[1].split())
    assert shown.startswith(f"{error.__name__}: ")
    assert any(pattern.search(shown) for pattern in messages), shown


def test_the_index_has_every_error_with_its_meaning():
    index = (DOCS / "errors.md").read_text(encoding="utf-8")
    for error in ERRORS:
        meaning = " ".join(inspect.getdoc(error).split())
        again = "yes" if error.retryable else "no"
        row = f"| [`{error.__name__}`](errors/{page_name(error.__name__)}) | {meaning} | {again} |"
        assert row in index, f"put this into docs/errors.md:\n{row}"


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_explain_prints_the_page_as_it_is_into_a_pipe():
    done = run("OffsetsLost")
    assert done.exit_code == 0
    assert done.stdout.startswith("# OffsetsLost\n\nRetention removed offsets")
    assert "exactbatch replay flights --start" in done.stdout


def test_explain_names_commands_and_errors_instead_of_relative_links():
    for name in (*explained_errors(), *explained_topics()):
        assert "](" not in run(name).stdout.replace("](…)", ""), name
    assert "(`exactbatch explain failover`)" in run("OffsetsLost").stdout
    upgrade = " ".join(run("upgrade").stdout.split())
    assert "`exactbatch explain failover` goes back." not in upgrade
    assert "failover (`exactbatch explain failover`) says what else goes back" in upgrade


def test_explain_prints_the_topics_that_are_no_errors():
    assert run("poolers").stdout.startswith("# Behind PgBouncer or another pooler\n")
    assert run("roles").stdout == (DOCS / "roles.sql").read_text()
    topic = json.loads(run("poolers", "--json").stdout)
    assert (topic["topic"], "Enough connections" in topic["sections"]["What the pooler needs"]) == (
        "poolers",
        True,
    )
    assert "Did you mean poolers?" in run("pooler").stderr
    names = [*explained_errors(), *explained_topics()]
    assert len({name.lower() for name in names}) == len(names) > 80


def strings(tree):
    """Return the texts of a module that are no docstrings, such as its messages; parts of an f-string are joined."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_messages_name_pages_that_every_installation_has():
    named = set()
    for path in sorted((JOBS / "exactbatch").rglob("*.py")):
        for text in strings(ast.parse(path.read_text())):
            assert not re.search(r"docs/[\w/-]+\.(md|sql)", text), f"{path.name}: {text}"
            named |= set(re.findall(r"`exactbatch explain ([\w-]+)`", text))
    assert {"poolers", "upgrade"} < named
    assert named <= {*explained_errors(), *explained_topics()}


def test_explain_takes_a_name_in_any_case_and_proposes_the_nearest():
    assert run("offsetslost").stdout == run("OffsetsLost").stdout
    unknown = run("OffsetLost")
    assert unknown.exit_code == 2
    assert "Did you mean OffsetsLost?" in unknown.stderr
    assert "Did you mean" not in run("qqqqqq").stderr


def test_explain_without_a_name_lists_all_errors_and_topics():
    listed = run().stdout
    assert all(topic in listed for topic in explained_topics())
    assert all(error.__name__ in listed for error in ERRORS)


def test_explain_as_json():
    page = json.loads(run("Fenced", "--json").stdout)
    assert (page["error"], list(page["sections"])) == ("Fenced", [*SECTIONS, PREVENTION])
    assert [each["error"] for each in json.loads(run("--json").stdout)] == [
        error.__name__ for error in ERRORS
    ]


class OwnError(OffsetsLost):
    """An error of somebody else's sink."""


def test_a_hint_names_the_page_of_the_class_or_of_its_nearest_base():
    assert hint(KafkaUnavailable("…")).startswith("`exactbatch explain KafkaUnavailable`")
    assert hint(OwnError("…")) == hint(OffsetsLost("…"))
    assert hint(ExactbatchError("…")) == hint(ValueError("…")) == find_hint("RuntimeError") == ""


def test_a_command_names_the_page_after_its_error(monkeypatch):
    monkeypatch.delenv("EXACTBATCH_KAFKA", raising=False)
    monkeypatch.setenv("EXACTBATCH_POSTGRES", "host=127.0.0.1")
    lines = CliRunner().invoke(app, ["lag"]).stderr.splitlines()
    assert lines[0].startswith("error: ConfigurationError: ")
    assert lines[-1] == find_hint("ConfigurationError")


@pytest.mark.parametrize("error", [OffsetsLost("…"), TablesUnfinished("…")], ids=["terminal", "retryable"])
def test_a_task_names_the_page_after_its_error(error, caplog):
    caplog.set_level(logging.INFO, "exactbatch")
    with pytest.raises((AirflowFailException, RetryableError)), airflow_errors():
        raise error
    assert caplog.messages[-2:] == [f"{type(error).__name__}: …", hint(error)]

"""Write docs/reference/commands.md from the commands, their options and their help: `make reference`."""

import inspect
import sys
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

import typer

from exactbatch.cli.app import COMMANDS, load_command
from exactbatch.local.commands import app as local_app

PAGE: Final = Path(__file__).parents[1] / "reference" / "commands.md"

# What explains a command in more detail than its help.
MORE: Final = {
    "replay": ("replay.md", "Replay and backfill"),
    "rejects": ("values.md", "Values"),
    "forward": ("forward.md", "Forward to Kafka"),
    "boundaries": ("replay.md", "Replay and backfill"),
    "compact": ("upsert.md", "Upsert"),
    "merge": ("layouts.md", "Large loads"),
    "prune": ("growth.md", "Long history"),
    "list": ("operations.md", "On the command line"),
    "status": ("operations.md", "On the command line"),
    "lag": ("operations.md", "On the command line"),
    "batches": ("operations.md", "On the command line"),
    "coverage": ("operations.md", "On the command line"),
    "audit": ("audit.md", "Audit"),
    "doctor": ("operations.md", "On the command line"),
    "explain": ("errors.md", "Errors"),
    "connect": ("connect.md", "Low latency"),
    "archive": ("connect.md", "Low latency"),
}
_SHARED: Final = 3  # commands that have an option with the same help: the page then explains it once
_INTRODUCTION: Final = """\
# Commands

<!-- `make reference` writes this page from the commands themselves. -->

`exactbatch COMMAND --help` shows the same in a terminal.

- Results go to stdout; questions, progress and errors go to stderr. With `--json`, stdout has one JSON document and
  nothing else.
- What deletes something, or cannot be undone, asks first. Without a terminal to ask on, such a command changes nothing
  and ends with exit status 2, unless it has `--yes`.
- Offsets go `FROM` … `UNTIL`, and windows of Kafka timestamps `START` … `END`; the second is not included. `--before`
  and `--keep` name a time in the past, `--batch` and `--below` the ID of a batch. A time is ISO 8601, such as
  `2026-01-05T08:00Z`, in UTC unless it names another time zone.
- Commands that need only the ledger and Kafka take the name of a registered pipeline.
- The connections come from [environment variables](environment.md). The [exit status](../errors.md#exit-statuses) says
  what a script should do.
- `exactbatch --install-completion` adds completion of commands, options and names of pipelines to your shell.

## Options that several commands have

| argument or option | meaning |
| --- | --- |
{shared}
"""
_LOCAL: Final = """\
## exactbatch local

Kafka, Postgres, Spark Connect and Airflow on this machine, for trying and developing. `--name` names one of several
stacks, `--home` their folder; `--help` after a command shows all of its options.

| command | what it does |
| --- | --- |
{rows}
"""


def page() -> str:
    """Return the page as Markdown."""
    commands = {name: load_command(name) for name in COMMANDS}
    described = {name: _describe(command) for name, command in commands.items()}
    counts = Counter(row for rows in described.values() for row in rows)
    shared = [row for row, count in counts.items() if count >= _SHARED]
    introduction = _INTRODUCTION.format(shared="\n".join(_row(*row) for row in shared))
    sections = (
        _section(name, command, [row for row in described[name] if row not in shared])
        for name, command in commands.items()
    )
    local = typer.main.get_command(local_app).commands  # type: ignore[attr-defined]
    rows = (_row(f"`{_usage(name, command)}`", _summary(command)) for name, command in local.items())
    return "\n".join([introduction, *sections, _LOCAL.format(rows="\n".join(rows))])


def _describe(command: Any) -> list[tuple[str, str]]:
    """Return the spelling and the meaning of each argument and each option."""
    arguments = [(f"`{each.metavar}`", _help(each)) for each in command.params if not _is_option(each)]
    options = [
        (_spelling(each), f"{_help(each)}{_default(each)}") for each in command.params if _is_option(each)
    ]
    return [*arguments, *options]


def _section(name: str, command: Any, own: list[tuple[str, str]]) -> str:
    """Return the section of a command: its help, and what the `own` ones of its arguments and options mean."""
    options = [_spelling(each).strip("`") for each in command.params if _is_option(each)]
    explained = {spelling.strip("`") for spelling, _ in own}
    usage = " ".join(
        [
            *("exactbatch", _usage(name, command)),
            *(["[OPTIONS]"] if explained.intersection(options) else []),
            *(f"[{option}]" for option in options if option not in explained),
        ]
    )
    page, title = MORE.get(name, ("", ""))
    more = f" More: [{title}](../{page})." if page else ""
    table = "\n".join(_row(*row) for row in own)
    parts = [
        f"## exactbatch {name}\n",
        f"{inspect.cleandoc(command.help)}{more}\n",
        f"```text\n{usage}\n```\n",
        f"| argument or option | meaning |\n| --- | --- |\n{table}\n" if own else "",
    ]
    return "\n".join(part for part in parts if part)


def _usage(name: str, command: Any) -> str:
    """Return the name of a command with its arguments."""
    return " ".join([name, *(_argument(each) for each in command.params if not _is_option(each))])


def _summary(command: Any) -> str:
    """Return the help of a command as one paragraph."""
    return " ".join(inspect.cleandoc(command.help).split()).replace("|", r"\|")


def _row(spelling: str, meaning: str) -> str:
    return f"| {spelling} | {meaning} |"


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _argument(argument: Any) -> str:
    several = f"{argument.metavar} …" if argument.nargs == -1 else argument.metavar
    return several if argument.required else f"[{several}]"


def _spelling(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    if not option.is_flag:
        names[-1] += f" {option.metavar or option.name.upper()}"
    return ", ".join(f"`{name}`" for name in names)


def _help(parameter: Any) -> str:
    meaning = (parameter.help or "").replace("|", r"\|")
    choices = [f"`{each.value}`" for kind in _kinds(parameter) if issubclass(kind, Enum) for each in kind]
    return f"{meaning} One of {', '.join(choices)}." if choices else meaning


def _kinds(parameter: Any) -> list[type]:
    """Return the classes of an annotation such as `Status | None`."""
    annotation = parameter.type_descriptor.annotation
    return [kind for kind in (get_args(annotation) or [annotation]) if isinstance(kind, type)]


def _default(option: Any) -> str:
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    if option.is_flag or shown in (None, ()) or option.show_default is False:
        return ""
    return f" Default: `{shown}`."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} is written\n")

"""Write docs/reference/commands.md from the commands, their options and their help: `make reference`."""

import inspect
import sys
from collections.abc import Iterator
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
_INTRODUCTION: Final = """\
# Commands

<!-- `make reference` writes this page from the commands themselves. -->

`exactbatch COMMAND --help` shows the same in a terminal. `PIPELINE` is `MODULE:NAME`, or `NAME` for the pipeline `NAME`
in the module `pipelines.NAME`; one of many tables is `NAME.TABLE`. Commands that need only the ledger and Kafka take
the name of a registered pipeline.

- Results go to stdout; questions, progress and errors go to stderr. With `--json`, stdout has one JSON document and
  nothing else.
- What deletes something, or cannot be undone, asks first: `--yes` answers, and `--dry-run` shows what would be done and
  changes nothing. Without a terminal to ask on, such a command changes nothing and ends with exit status 2, unless it
  has `--yes`.
- Offsets go `FROM` … `UNTIL`, and windows of Kafka timestamps `START` … `END`; the second is not included. `--before`
  and `--keep` name a time in the past, `--batch` and `--below` the ID of a batch. A time is ISO 8601, such as
  `2026-01-05T08:00Z`, in UTC unless it names another time zone.
- The connections come from [environment variables](environment.md).
- The exit status says what a script should do: [Exit statuses](../errors.md#exit-statuses).
- `exactbatch --install-completion` adds completion of commands, options and names of pipelines to your shell.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of each command, in the order of the help."""
    for name in COMMANDS:
        yield name, load_command(name)
    for name, command in typer.main.get_command(local_app).commands.items():  # type: ignore[attr-defined]
        yield f"local {name}", command


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in commands())])


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join(["exactbatch", name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    described = [(f"`{each.metavar}`", _help(each)) for each in arguments]
    described += [(_spelling(each), f"{_help(each)}{_default(each)}") for each in options]
    page, title = MORE.get(name, ("", ""))
    more = f"More: [{title}](../{page}).\n" if page else ""
    table = "".join(f"| {spelling} | {meaning} |\n" for spelling, meaning in described)
    parts = [
        f"## exactbatch {name}\n",
        f"{inspect.cleandoc(command.help)}\n",
        f"```text\n{usage}\n```\n",
        f"| argument or option | meaning |\n| --- | --- |\n{table}" if table else "",
        more,
    ]
    return "\n".join(part for part in parts if part)


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

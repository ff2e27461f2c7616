"""Write docs/reference/commands.md from the commands, their options and their help: `make reference`."""

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

import typer

from exactbatch.cli.app import app
from exactbatch.local.commands import app as local_app

PAGE: Final = Path(__file__).parents[1] / "reference" / "commands.md"

# What explains a command in more detail than its help.
MORE: Final = {
    "replay": "replay.md",
    "rejects": "values.md",
    "forward": "forward.md",
    "boundaries": "replay.md",
    "compact": "upsert.md",
    "merge": "layouts.md",
    "prune": "growth.md",
    "status": "operations.md",
    "lag": "operations.md",
    "batches": "operations.md",
    "coverage": "operations.md",
    "audit": "audit.md",
    "doctor": "operations.md",
    "explain": "errors.md",
    "connect": "connect.md",
    "archive": "connect.md",
}
_INTRODUCTION: Final = """\
# Commands

<!-- `make reference` writes this page from the commands themselves. -->

`exactbatch COMMAND --help` shows the same in a terminal. `PIPELINE` is `MODULE:NAME`, or `NAME` for the pipeline `NAME`
in the module `pipelines.NAME`; one of many tables is `NAME.TABLE`. Commands that need only the ledger and Kafka take
the name of a registered pipeline.

- Results go to stdout; questions, progress and errors go to stderr. With `--json`, stdout has one JSON document and
  nothing else.
- Questions are asked on a terminal only. `--yes` answers them. Without a terminal, `exactbatch init` upgrades a ledger
  only with `--yes`.
- The connections come from [environment variables](environment.md).
- The exit status says what a script should do: [errors.md](../errors.md#exit-statuses).
- `exactbatch --install-completion` adds completion of commands, options and names of pipelines to your shell.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of each command, in the order of the help."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if name != "local":
            yield name, command
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
    more = f"More: [{MORE[name]}](../{MORE[name]}).\n" if name in MORE else ""
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
    # A metavar may have the brackets and dots of click's usage: [PIPELINE]…
    name = argument.metavar.removeprefix("[").removesuffix("...").removesuffix("]")
    several = f"{name} …" if argument.nargs == -1 else name
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

"""The command line: `exactbatch COMMAND PIPELINE`.

Each command is a function in the module of its name. A module imports what its command needs, which may be Spark, and
is imported when its command is chosen: not for the list of commands, and not when a shell completes their names.
"""

import builtins
import keyword
import platform
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from exactbatch.cli.console import with_exit_status
from exactbatch.cli.local import run_local
from exactbatch.cli.typer_app import App, Group
from exactbatch.code_identity import package_version

# The panels of the help and their commands, each with the first paragraph of the command's own help.
PANELS: Final = {
    "Define": {
        "new": "Sample a topic, and write a pipeline for it: its module, its DAG and its test. Overwrites nothing.",
        "try": "Decode the newest records, and write nothing. Exit status 3 if some would be rejected.",
        "register": "Register a pipeline in the ledger. Creates the ledger in a database that has none.",
        "plan": "Show what the next run would process. Changes nothing.",
    },
    "Run": {
        "run": "Plan the next batch and process it, without Airflow. `exactbatch forward` then sends its results.",
        "replay": "Process ranges, a time window or batches again: retract their results and write new ones.",
        "rejects": "List rejected records and the reasons, or process them again.",
        "forward": "Send the results that batches have committed to the pipeline's topic.",
        "connect": 'Run a Spark Connect server for batches with engine="connect", until it is stopped.',
    },
    "Inspect": {
        "list": "List the registered pipelines, and the modules of `pipelines` that are not registered. Asks only "
        "the ledger.",
        "status": "Show the stored offset and lag of each partition, and the newest batches. Without a name, show one "
        "line for each pipeline.",
        "lag": "Show how far pipelines are behind: in offsets, in time, and until retention removes an unprocessed "
        "record.",
        "batches": "Show the batches of a pipeline, newest first: counts, duration, origin, ranges and failures.",
        "coverage": "Show which offsets are processed, replayed, folded or lost: a strip for each partition.",
        "boundaries": "Show time boundaries: the offsets that times of windows and backfills were resolved to. Or "
        "forget some.",
        "audit": "Read the log again and compare it with the target, offset by offset. Exit status 3 if they differ.",
        "doctor": "Check everything that batches need, and say how to solve each problem. Exit status 3 if there is "
        "one.",
        "explain": "Explain an error: why it happens, what was written, and how to recover. Or print the page about a "
        "topic.",
    },
    "Maintain": {
        "migrate": "Create the ledger, or upgrade it, which cannot be undone. --dry-run prints the SQL.",
        "compact": "Drop old changes of an Upsert, except the latest of each key. Dropped changes cannot be replayed.",
        "merge": 'Merge small partitions of a target with layout="by_batch". Batches can run meanwhile.',
        "prune": "Fold old batches in the ledger: it still knows that their offsets are processed, but no longer by "
        "which batch.",
        "new-epoch": "Begin a new epoch after the positions of the source went back: later changes then count as "
        "newer.",
        "roles": "Print the SQL for psql that creates the roles of a deployment, and grants each what it needs.",
        "executor-requirements": "Print the packages that Spark's executors need, with hashes, for pip install -r.",
        "archive": "Archive the classes of Spark's JVM, so that drivers start faster. Does nothing if the archive "
        "exists.",
    },
}
COMMANDS: Final = [name for commands in PANELS.values() for name in commands]


def load_command(name: str) -> Any:
    """Import the module of a command, and return the command as Typer builds it."""
    module = name.replace("-", "_") + "_" * (keyword.iskeyword(name) or hasattr(builtins, name))
    single = App(add_completion=False)
    single.command(name)(with_exit_status(getattr(import_module(f"exactbatch.cli.{module}"), module)))
    return typer.main.get_command(single)


class _Commands(Group):
    """The commands; only the chosen one is loaded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and the arguments of what was typed."""
        if args[0] == "init":
            ctx.fail(
                "The command `init` is two commands now: `exactbatch register PIPELINE` registers a pipeline, and "
                "creates the ledger in a database that has none; `exactbatch migrate` upgrades a ledger."
            )
        if args[0] in COMMANDS:
            self.add_command(load_command(args[0]))
        return super().resolve_command(ctx, args)


app = App(cls=_Commands, help="Exactly-once batches from Kafka to Postgres.")


def _print_versions(asked: bool) -> None:
    """Print the versions and end, if they are asked for."""
    if asked:
        # The list of commands does without the time that this takes.
        from exactbatch.ledger import newest_version

        typer.echo(f"exactbatch {package_version()}")
        typer.echo(f"Python {platform.python_version()}")
        typer.echo(f"ledger version {newest_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of exactbatch, Python and the ledger that it needs, and exit.",
        ),
    ] = False,
) -> None:
    pass


for _panel, _commands in PANELS.items():
    for _name, _summary in _commands.items():
        app.command(_name, help=_summary, rich_help_panel=_panel)(lambda: None)


# All arguments go to the app of exactbatch.local, which is imported only here: `--help` included.
@app.command(
    add_help_option=False,
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
    rich_help_panel="Local",
)
@with_exit_status
def local(context: typer.Context) -> None:
    """Run Kafka, Postgres and Spark Connect on this machine. Needs the extra `local`."""
    run_local(context.args)

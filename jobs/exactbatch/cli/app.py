"""The command line: `exactbatch COMMAND PIPELINE`."""

import typer

from exactbatch.cli.archive import archive
from exactbatch.cli.batches import batches
from exactbatch.cli.compact import compact
from exactbatch.cli.connect import connect
from exactbatch.cli.console import with_exit_status
from exactbatch.cli.coverage import coverage
from exactbatch.cli.doctor import doctor
from exactbatch.cli.explain import explain
from exactbatch.cli.forward import forward
from exactbatch.cli.init import init
from exactbatch.cli.inspect import audit, boundaries
from exactbatch.cli.lag import lag
from exactbatch.cli.local import run_local
from exactbatch.cli.merge import merge
from exactbatch.cli.new import new
from exactbatch.cli.new_epoch import new_epoch
from exactbatch.cli.process import plan, rejects, replay, run
from exactbatch.cli.prune import prune
from exactbatch.cli.status import status
from exactbatch.cli.try_ import try_

app = typer.Typer(
    help="Exactly-once batches from Kafka to Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (
    new,
    try_,
    init,
    plan,
    run,
    replay,
    rejects,
    forward,
    boundaries,
    compact,
    new_epoch,
    merge,
    prune,
    status,
    lag,
    batches,
    coverage,
    audit,
    doctor,
    explain,
    connect,
    archive,
):
    # `try` is a word of Python.
    app.command(_command.__name__.rstrip("_").replace("_", "-"))(with_exit_status(_command))


# All arguments go to the app of exactbatch.local, which is imported only here: `--help` included.
@app.command(
    add_help_option=False,
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
)
@with_exit_status
def local(context: typer.Context) -> None:
    """Run Kafka, Postgres and Spark Connect on this machine. Needs the extra `local`."""
    run_local(context.args)

"""The pipeline that a command names, and the connections to its servers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from exactbatch.cli.completion import pipeline_names
from exactbatch.cli.console import err
from exactbatch.cli.local import local_settings
from exactbatch.cli.typed_values import typed
from exactbatch.discovery import load_named
from exactbatch.errors import NotRegistered, WrongUsage
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_properties import check_properties
from exactbatch.ledger import Batch, Ledger, check_schema, ledger_session
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import as_they_start, find_members, selected
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import KAFKA, POSTGRES, Settings
from exactbatch.tables import Tables

REFERENCE_HELP: Final = "MODULE:NAME, or NAME for pipelines.NAME:NAME; NAME.TABLE for one of many tables."
Reference = Annotated[
    str, typer.Argument(metavar="PIPELINE", help=REFERENCE_HELP, autocompletion=pipeline_names)
]
RegisteredName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The name of a registered pipeline, or MODULE:NAME.",
        autocompletion=pipeline_names,
    ),
]
LOCAL_MASTER: Final = "local[*]"
Master = Annotated[str, typer.Option(help="Spark master, or URL of a Spark Connect server.")]


def load(reference: str) -> tuple[Pipeline, Settings]:
    """Import a pipeline, and read from the environment how to reach Kafka and Postgres.

    Without both variables, a running local stack serves. Raises WrongUsage, also for Tables, and ConfigurationError.
    """
    found, settings = load_any(reference)
    if isinstance(found, Tables):
        raise WrongUsage(
            f"{found.name!r} stands for many tables, and this command takes one. Name the table: {reference}.TABLE"
        )
    return found, settings


def load_any(reference: str) -> tuple[Pipeline | Tables, Settings]:
    """Like load(), and also return Tables. A member is named by their reference, a dot, and its table."""
    found, table = load_named(reference)
    settings = load_settings()
    if table is None or not isinstance(found, Tables):
        return found, settings
    with ledger_connection(settings) as connection:
        members, unmade = find_members(connection, KafkaBroker(settings.kafka), found)
        if (error := unmade.get(f"{found.prefix}{table}")) is not None:
            raise error
        with typed():
            chosen = selected(found, members, [table])
        (member,) = as_they_start(connection, found, chosen)
    return member, settings


def find_tables(reference: str) -> Tables | None:
    """Return the Tables one of whose members is named; None if a reference names no member."""
    found, table = load_named(reference)
    return found if isinstance(found, Tables) and table is not None else None


def find_registered_name(reference: str) -> str:
    """Return the name under which a pipeline or Tables are registered: of MODULE:NAME, or the reference itself."""
    if ":" not in reference:
        return reference
    found, table = load_named(reference)
    return found.name if table is None else f"{found.name}.{table}"


@contextmanager
def typed_names(references: Sequence[str]) -> Iterator[None]:
    """Raise WrongUsage instead of NotRegistered if a reference is neither registered nor the name of a module."""
    try:
        yield
    except NotRegistered as error:
        modules = pipeline_names("")
        if any(":" not in each and each.partition(".")[0] not in modules for each in references):
            raise WrongUsage(str(error)) from None
        raise


def load_settings() -> Settings:
    """Read from the environment how to reach Kafka and Postgres, as load() does. Raises ConfigurationError."""
    settings = _settings()
    check_properties(settings.kafka)
    return settings


def _settings() -> Settings:
    if KAFKA not in os.environ and POSTGRES not in os.environ and (settings := local_settings()) is not None:
        err.print(f"[dim]{KAFKA} and {POSTGRES} are not set: using the local stack[/dim]")
        return settings
    return Settings.from_environment()


@contextmanager
def ledger_connection(
    settings: Settings, pipeline: Pipeline | None = None, *, may_be_new: bool = False
) -> Iterator[Connection]:
    """Connect to the database of the ledger; check the ledger's version unless it may still be created."""
    with ledger_session(settings.postgres, "exactbatch cli", pipeline) as connection:
        if not may_be_new:
            check_schema(connection)
        yield connection


def find_planned(connection: Connection, batch_id: int) -> tuple[Batch, int]:
    """Return a batch, and how many offsets its ranges have."""
    with transaction(connection):
        ledger = Ledger(connection)
        return ledger.batches.read(batch_id), sum(map(len, ledger.batches.read_ranges(batch_id)))

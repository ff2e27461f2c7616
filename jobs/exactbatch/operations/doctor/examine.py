"""Run all checks of `exactbatch doctor`."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Definition, Ledger, check_schema
from exactbatch.model import StoredOffset
from exactbatch.operations.doctor import database, machine
from exactbatch.operations.doctor.finding import DEADLINE, Finding, not_checked, of_error, run_check
from exactbatch.operations.doctor.registrations import (
    check_registrations,
    check_targets,
    find_pipelines,
    with_members,
)
from exactbatch.operations.doctor.servers import (
    check_encryption,
    check_kafka,
    check_pools,
    check_postgres,
    connection_finding,
    postgres_connection,
)
from exactbatch.operations.doctor.topic_checks import (
    check_forwarding,
    check_freshness,
    check_known_records,
    check_open_transactions,
    check_retention,
    check_topics,
)
from exactbatch.operations.lag import PipelineLag, measure_lag
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import POSTGRES, Settings
from exactbatch.tables import Tables

_MACHINE: Final = (
    ("java", machine.check_java, DEADLINE),
    ("packages", machine.check_packages, DEADLINE),
    ("spark", machine.check_spark, DEADLINE),
    ("tested versions", machine.check_versions, DEADLINE),
    ("fast path", machine.check_fast_path, machine.FAST_PATH_TIMEOUT + DEADLINE),
    ("class archive", machine.check_archive, DEADLINE),
)
_DATABASE: Final = (
    ("tested versions", database.check_version),
    ("server settings", database.check_settings),
    ("search path", database.check_search_path),
    ("clocks", database.check_clock),
    ("ledger", database.check_ledger),
)
_LEDGER: Final = ("privileges", "pipelines", "targets")
_LOG: Final = ("forwarding", "topics", "retention", "freshness", "open transactions", "known records")


def examine(
    settings: Settings | ExactbatchError,
    references: Sequence[str] = (),
    *,
    airflow: str | None = None,
    pools: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _check: None,
) -> Iterator[Finding]:
    """Yield the findings of all checks; a check that cannot run has one, too.

    `settings` may be the error that reading them raised. `references` are the pipelines to check, by default all of
    the package `pipelines`. `airflow` is the ID of a connection to Airflow's REST API, where `pools` should exist.
    `progress` receives the name of each check before it runs.
    """

    def run(name: str, check: Callable[[], Iterable[Finding]], seconds: float = DEADLINE) -> list[Finding]:
        progress(name)
        return run_check(name, check, seconds=seconds)

    for name, check, seconds in _MACHINE:
        yield from run(name, check, seconds)
    yield from run("Airflow's pools", partial(check_pools, airflow, pools))
    pipelines: dict[str, Pipeline | Tables] = {}
    members: dict[str, Pipeline] = {}

    def find() -> list[Finding]:
        found, findings = find_pipelines(references)
        pipelines.update(found)
        return findings

    yield from run("pipelines", find)
    if isinstance(settings, ExactbatchError):
        yield of_error("settings", settings)
        for name in ("encryption", "Kafka connection", "Postgres connection"):
            yield not_checked(name, "the settings")
        yield from (not_checked(name, "the settings") for name in (*dict(_DATABASE), *_LEDGER, *_LOG))
        return
    yield from run("encryption", partial(check_encryption, settings, pipelines))
    kafka = run("Kafka connection", partial(check_kafka, settings))
    postgres = run("Postgres connection", partial(check_postgres, settings))
    yield from (*kafka, *postgres)
    if not _all_ok(postgres):
        yield from (not_checked(name, "Postgres") for name in (*dict(_DATABASE), *_LEDGER, *_LOG))
        return
    try:
        yield from _of_database(run, settings, pipelines, members, references)
        if not _is_usable(settings):
            yield from (not_checked(name, "the ledger") for name in (*_LEDGER, *_LOG))
        elif not _all_ok(kafka):
            yield from (not_checked(name, "Kafka") for name in _LOG)
        else:
            yield from _of_log(run, settings, members, references)
    except ExactbatchError as error:  # the server has gone in the meantime
        yield connection_finding("Postgres", POSTGRES, error)


def _of_database(
    run: Callable[..., list[Finding]],
    settings: Settings,
    pipelines: dict[str, Pipeline | Tables],
    members: dict[str, Pipeline],
    references: Sequence[str],
) -> Iterator[Finding]:
    """Check the database; `members` receives the pipelines, and those of Tables, by reference."""
    for name, check in _DATABASE:
        yield from run(name, partial(_connected, settings, check))
    if _is_usable(settings):

        def find(connection: Connection) -> list[Finding]:
            found, findings = with_members(connection, pipelines)
            members.update(found)
            return findings

        def registrations(connection: Connection) -> Iterable[Finding]:
            return check_registrations(connection, members, all_of_them=not references)

        yield from run("pipelines", partial(_connected, settings, find))
        yield from run("privileges", partial(_connected, settings, database.check_privileges))
        yield from run("pipelines", partial(_connected, settings, registrations))
        yield from run("targets", partial(_connected, settings, partial(check_targets, pipelines=members)))


def _of_log(
    run: Callable[..., list[Finding]],
    settings: Settings,
    pipelines: dict[str, Pipeline],
    references: Sequence[str],
) -> Iterator[Finding]:
    broker = KafkaBroker(settings.kafka)
    forwarding = partial(check_forwarding, broker=broker, pipelines=list(pipelines.values()))
    yield from run("forwarding", partial(_connected, settings, forwarding))
    registered: list[tuple[Definition, Sequence[StoredOffset]]] = []

    def load(connection: Connection) -> Iterable[Finding]:
        with transaction(connection):
            ledger = Ledger(connection)
            chosen = {pipeline.name for pipeline in pipelines.values()}
            definitions = [
                each for each in ledger.registry.read_all() if not references or each.name in chosen
            ]
            registered.extend([(each, ledger.plans.read_stored_offsets(each)) for each in definitions])
        return ()

    topics = run("topics", partial(_connected, settings, load))
    if topics:
        yield from topics
        yield from (not_checked(name, "the topics") for name in _LOG[2:])
        return
    seen, topics = _lags(run, broker, registered)
    yield from topics
    if not seen and topics:
        yield from (not_checked(name, "the topics") for name in _LOG[2:])
        return
    yield from check_topics(seen)
    unseen = sorted({each.name for each, _ in registered} - {lag.pipeline for lag in seen})
    for name, check in (
        ("retention", partial(check_retention, seen)),
        ("freshness", partial(check_freshness, seen)),
        ("open transactions", partial(check_open_transactions, broker, seen)),
        (
            "known records",
            partial(_connected, settings, partial(check_known_records, broker=broker, lags=seen)),
        ),
    ):
        found = run(name, check)
        if unseen:  # what is ok for the others is not for all
            yield from (each for each in found if each.level != "ok")
            yield not_checked(name, "the topics", unseen)
        else:
            yield from found


def _lags(
    run: Callable[..., list[Finding]],
    broker: KafkaBroker,
    registered: Sequence[tuple[Definition, Sequence[StoredOffset]]],
) -> tuple[list[PipelineLag], list[Finding]]:
    """Return the lags of pipelines with these stored offsets, and findings on those whose lag is not known.

    Each pipeline has the time of a check. Those that fail or do not answer share one: Kafka may be what hangs.
    """
    lags: list[PipelineLag] = []
    findings: list[Finding] = []

    def look(definition: Definition, stored: Sequence[StoredOffset]) -> Iterable[Finding]:
        with translate_all_errors():
            lags.append(measure_lag(broker, definition, stored))
        return ()

    left = DEADLINE
    for number, (definition, stored) in enumerate(registered, start=1):
        began = time.monotonic()
        if found := run("topics", partial(look, definition, stored)):
            findings += [replace(each, found=f"pipeline {definition.name!r}: {each.found}") for each in found]
            left -= time.monotonic() - began
        if left <= 0:
            if others := [each.name for each, _ in registered[number:]]:
                findings.append(not_checked("topics", "Kafka", others))
            break
    return list(lags), findings  # a thread that is past its deadline may go on


def _all_ok(findings: Sequence[Finding]) -> bool:
    return bool(findings) and all(finding.level == "ok" for finding in findings)


def _connected(settings: Settings, check: Callable[[Connection], Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check over a connection of its own: if it misses its deadline, it goes on, and no other may use that."""
    with postgres_connection(settings) as connection:
        yield from check(connection)


def _is_usable(settings: Settings) -> bool:
    with suppress(ExactbatchError), postgres_connection(settings) as connection:
        check_schema(connection)
        return True
    return False

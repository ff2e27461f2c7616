"""Checks whether others in the network can read what goes to Postgres and to schema registries."""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from psycopg2.extensions import parse_dsn

from exactbatch.formats.registry.addresses import list_registries, sends_password_openly
from exactbatch.operations.doctor.finding import Finding
from exactbatch.pipeline import Pipeline
from exactbatch.settings import KAFKA, POSTGRES, Settings
from exactbatch.tables import Tables
from exactbatch.tokens.token import LOOPBACK

_CHECK: Final = "encryption"
_VERIFIED: Final = "verify-full"


def check_encryption(settings: Settings, pipelines: Mapping[str, Pipeline | Tables]) -> Iterator[Finding]:
    """Yield the connections that are not encrypted, or whose server is not verified."""
    found = [*_of_postgres(settings), *_of_registries(settings, pipelines)]
    yield from found or [
        Finding(
            _CHECK,
            "ok",
            "no connection to Postgres or to the registry of a named pipeline was found that others could read",
        )
    ]


def _of_postgres(settings: Settings) -> Iterator[Finding]:
    given = parse_dsn(settings.postgres)
    hosts = [
        host
        for name in ("hostaddr", "host")
        for host in given.get(name, os.environ.get(f"PG{name.upper()}", "")).split(",")
    ]
    mode = given.get("sslmode", os.environ.get("PGSSLMODE", "prefer"))
    if mode != _VERIFIED and any(
        host and not host.startswith(("/", "@")) and host not in LOOPBACK for host in hosts
    ):
        yield Finding(
            _CHECK,
            "warning",
            f"Postgres is reached with sslmode={mode}, which does not verify the server: someone else on the "
            "network can impersonate it",
            f"Set sslmode={_VERIFIED} and sslrootcert in {POSTGRES}.",
        )


def _members(pipeline: Pipeline | Tables) -> Iterator[Pipeline]:
    """Yield the pipelines of a reference. Topics of a pattern are left out: only Kafka knows them."""
    if isinstance(pipeline, Pipeline):
        yield pipeline
    elif isinstance(pipeline.topic_names, tuple):
        yield from filter(None, map(pipeline.member, pipeline.topic_names))


def _of_registries(settings: Settings, pipelines: Mapping[str, Pipeline | Tables]) -> Iterator[Finding]:
    members = [member for each in pipelines.values() for member in _members(each)]
    formats = [each for member in members for each in (member.value, member.message_key)]
    registries = sorted({registry for each in formats for registry in list_registries(each)})
    for registry in registries:
        if (address := sends_password_openly(registry, settings.kafka)) is not None:
            yield Finding(
                _CHECK,
                "problem",
                f"the registry's password or token would go to {address} without encryption",
                f"Write the address with https, or remove the credentials from {KAFKA}.",
            )

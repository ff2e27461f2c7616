"""Logins of tests, each of which needs a password."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import make_dsn, parse_dsn

LOGIN: Final = "login password 'pa55word'"  # of create role


def as_login(dsn: str, login: str) -> str:
    """Return the connection string of a role that was created with LOGIN."""
    return str(make_dsn(dsn, user=login, password=LOGIN.split("'")[1]))


def password_of(dsn: str) -> str:
    """Return the password of a connection string, for a client that is not libpq."""
    parts = parse_dsn(dsn)
    return parts.get("password") or Path(parts["passfile"]).read_text().rpartition(":")[2]


def java_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a Java client that logs in as librdkafka does with `kafka`."""
    java = dict(kafka)
    login = f'username="{java.pop("sasl.username")}" password="{java.pop("sasl.password")}"'
    java["sasl.jaas.config"] = f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};"
    return java


@contextmanager
def superuser_login(dsn: str, login: str, password: str) -> Iterator[None]:
    """Create a superuser with a password; drop it at the end, with everything that it owns."""
    role = sql.Identifier(login)
    with closing(psycopg2.connect(dsn)) as superuser:
        superuser.autocommit = True
        with superuser.cursor() as cursor:
            cursor.execute(sql.SQL("drop role if exists {}").format(role))
            cursor.execute(sql.SQL("create role {} superuser login password %s").format(role), (password,))
            try:
                yield
            finally:
                cursor.execute(sql.SQL("drop owned by {} cascade").format(role))
                cursor.execute(sql.SQL("drop role {}").format(role))

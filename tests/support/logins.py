"""Logins that need a password: the tests' Postgres trusts everybody else."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
from psycopg2 import sql

from exactbatch.local import LocalStack
from exactbatch.local.ports import HOST


@contextmanager
def asked_for_password(stack: LocalStack, dsn: str, login: str, password: str) -> Iterator[None]:
    """Create a superuser that must log in with a password; drop it at the end, with everything that it owns."""
    hba = stack.postgres.data_dir / "pg_hba.conf"
    before = hba.read_text()
    role = sql.Identifier(login)
    with closing(psycopg2.connect(dsn)) as superuser:
        superuser.autocommit = True
        with superuser.cursor() as cursor:
            cursor.execute(sql.SQL("drop role if exists {}").format(role))
            cursor.execute("set password_encryption = 'scram-sha-256'")
            cursor.execute(sql.SQL("create role {} superuser login password %s").format(role), (password,))
            try:
                hba.write_text(f"host all {login} {HOST}/32 scram-sha-256\n{before}")
                cursor.execute("select pg_reload_conf()")
                yield
            finally:
                hba.write_text(before)
                cursor.execute("select pg_reload_conf()")
                cursor.execute(sql.SQL("drop owned by {} cascade").format(role))
                cursor.execute(sql.SQL("drop role {}").format(role))

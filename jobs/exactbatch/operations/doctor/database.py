"""Checks of the database: the ledger's version, privileges, the server's settings, and its clock."""

import time
from collections.abc import Iterator
from typing import Final

from exactbatch.batch.tested_versions import REMEDY, of_postgres, untested
from exactbatch.errors import NotRegistered
from exactbatch.ledger import check_schema
from exactbatch.operations.doctor.finding import Finding, Level, of_error
from exactbatch.postgres.connection import Connection, transaction

SKEW: Final = 2.0  # seconds
# Of the sessions that one batch may need: 8 tasks (max_connections of a pipeline) and 3 of the driver.
SESSIONS: Final = 11
# What exactbatch_job has in docs/roles.sql: a table, its columns or none for all, and a privilege.
_LEDGER_PRIVILEGES: Final = (
    ("pipeline", "registered_at", "update"),
    *(
        (table, "", "insert")
        for table in ("stored_offset", "batch", "batch_range", "coverage", "rejected_record")
    ),
    *(
        (table, "", "insert")
        for table in ("time_boundary", "batch_failure", "run_life", "empty_run", "fingerprint")
    ),
    ("stored_offset", "next_offset", "update"),
    ("batch", "status", "update"),
    ("batch", "pruned", "update"),
    ("batch", "stages", "update"),
    ("batch", "application_id", "update"),
    ("batch", "replaced", "update"),
    ("batch_failure", "failures", "update"),
    ("batch_range", "records", "update"),
    ("batch_range", "replaced", "update"),
    ("fingerprint", "", "delete"),
    ("coverage", "", "delete"),
    ("rejected_record", "", "delete"),
    ("empty_run", "clear_number", "update"),
    ("empty_run", "", "delete"),
    # Results that are forwarded.
    ("outbox", "", "insert"),
    ("outbox", "", "delete"),
    *(
        ("forward", column, "update")
        for column in (
            "topic_id",
            "last_sequence",
            "sent_sequence",
            "attempted_sequence",
            "next_offsets",
            "forwarder",
            "sent_at",
        )
    ),
)
_MISSING_PRIVILEGES: Final = """
select format('%%s on %%s', n.privilege, 'exactbatch.' || c.relname)
from unnest(%(tables)s::text[], %(columns)s::text[], %(privileges)s::text[]) n (name, col, privilege)
join pg_class c on c.relnamespace = to_regnamespace('exactbatch') and c.relname = n.name
where not case when n.col = '' then has_table_privilege(c.oid, n.privilege)
               else has_column_privilege(c.oid, n.col, n.privilege) end
union all
select format('select on exactbatch.%%s', c.relname) from pg_class c
where c.relnamespace = to_regnamespace('exactbatch') and c.relkind = 'r' and not has_table_privilege(c.oid, 'select')
union all
select format('%%s on schema %%s', p.privilege, n.nspname)
from pg_namespace n join (values ('exactbatch', 'usage'), ('exactbatch_staging', 'usage'),
                                 ('exactbatch_staging', 'create')) p (name, privilege) on p.name = n.nspname
where not has_schema_privilege(n.oid, p.privilege)
union all
select format('execute on %%s', p.oid::regprocedure) from pg_proc p
where p.pronamespace = to_regnamespace('exactbatch') and not has_function_privilege(p.oid, 'execute')
  and p.proname in ('take_lock', 'try_lock', 'bind_transaction', 'log_key')
union all
select format('temporary on database %%s', current_database())
where not has_database_privilege(current_database(), 'temporary')
order by 1
"""
_SETTINGS: Final = """
select pg_is_in_recovery() as standby,
       current_setting('default_transaction_read_only') as read_only,
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('track_counts') as track_counts,
       current_setting('autovacuum') as autovacuum,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - (select count(*) from pg_stat_activity where backend_type = 'client backend')::int as free_sessions
"""


def check_version(connection: Connection) -> Iterator[Finding]:
    """Compare the server's version with those that exactbatch was tested with."""
    if (said := untested("Postgres", of_postgres(connection.server_version))) is not None:
        yield Finding("tested versions", "warning", said, REMEDY)


def check_ledger(connection: Connection) -> Iterator[Finding]:
    """Compare the version of the ledger with the one that this program needs."""
    try:
        check_schema(connection)
    except NotRegistered as error:
        yield of_error("ledger", error)
        return
    yield Finding("ledger", "ok", "has the version that this program needs")


def check_privileges(connection: Connection) -> Iterator[Finding]:
    """Look for privileges on the ledger that planning, processing and replays need, and this login lacks."""
    tables, columns, privileges = zip(*_LEDGER_PRIVILEGES, strict=True)
    parameters = {"tables": list(tables), "columns": list(columns), "privileges": list(privileges)}
    with transaction(connection) as cursor:
        cursor.execute(_MISSING_PRIVILEGES, parameters)
        missing = [row[0] for row in cursor.fetchall()]
    login = connection.info.user
    if missing:
        yield Finding(
            "privileges",
            "problem",
            f"login {login!r} cannot plan and process batches: it lacks {', '.join(missing)}",
            f"Run the statements of `exactbatch roles`, and grant exactbatch_job to {login!r}, unless this "
            f"login only reads.",
        )
    else:
        yield Finding("privileges", "ok", f"login {login!r} has those that the ledger needs")


def check_settings(connection: Connection) -> Iterator[Finding]:
    """Look for settings of the server that stop or endanger batches."""
    with transaction(connection) as cursor:
        cursor.execute(_SETTINGS)
        row = cursor.fetchone()
    conditions: list[tuple[bool, Level, str, str]] = [
        (
            row.standby,
            "problem",
            "the server is a standby, which cannot be written to",
            "Let the connection string name the primary (target_session_attrs=read-write).",
        ),
        (
            row.read_only == "on",
            "problem",
            "default_transaction_read_only is on, so no transaction can write",
            "Reset it for the login or the database: alter role … reset default_transaction_read_only.",
        ),
        (
            row.fsync == "off",
            "problem",
            "fsync is off: a crash of the server can lose or damage committed batches",
            "Switch fsync on in postgresql.conf.",
        ),
        (
            row.full_page_writes == "off",
            "warning",
            "full_page_writes is off: a crash of the server can damage tables",
            "Switch full_page_writes on, unless the file system writes pages atomically.",
        ),
        (
            row.track_counts == "off",
            "warning",
            "track_counts is off: commit='partition' is refused, and autovacuum does not run",
            "Switch track_counts on.",
        ),
        (
            row.autovacuum == "off",
            "warning",
            "autovacuum is off: the ledger and the targets of replays grow without end",
            "Switch autovacuum on.",
        ),
        (
            row.free_sessions < SESSIONS,
            "warning",
            f"{row.free_sessions} sessions are free, and one batch may need {SESSIONS}",
            "Raise max_connections of the server, or lower max_connections of the pipelines.",
        ),
    ]
    bad = [
        Finding("server settings", level, found, remedy)
        for applies, level, found, remedy in conditions
        if applies
    ]
    yield from bad or [Finding("server settings", "ok", f"{row.free_sessions} sessions are free")]


def check_search_path(connection: Connection) -> Iterator[Finding]:
    """Look for schemas of the login's search path in which other roles may create functions and operators."""
    if connection.left_out is None:
        yield Finding(
            "search path",
            "ok",
            f"no other role may create functions in the schemas on the path of {connection.info.user!r}",
        )
        return
    yield Finding(
        "search path",
        "warning",
        f"the path of {connection.info.user!r} has schemas in which other roles may create functions and operators, or "
        f"have done so: {connection.left_out}. Statements over targets do not search these schemas, other programs do",
        "Run revoke create on schema … from …, and drop what the role has created there; or leave the schema out: "
        "alter role … set search_path = ….",
    )


def check_clock(connection: Connection) -> Iterator[Finding]:
    """Compare the clocks of this machine and of Postgres. Kafka has no request for a broker's clock."""
    with transaction(connection) as cursor:
        before = time.time()
        cursor.execute("select extract(epoch from clock_timestamp())::float8")
        server = cursor.fetchone()[0]
        after = time.time()
    ahead = max(0.0, server - after, before - server)  # at least so far apart
    if ahead > SKEW:
        yield Finding(
            "clocks",
            "warning",
            f"the clocks of this machine and of Postgres differ by {ahead:.1f} s, so ages and times until retention "
            f"are wrong by as much",
            "Synchronize both machines with NTP.",
        )
    else:
        yield Finding("clocks", "ok", "this machine and Postgres agree")

"""What each role of docs/roles.sql may do with each table, view and function of the ledger, and nothing else.

Every statement is tried, and rolled back. It is allowed unless Postgres denies it for want of a privilege (42501).
"""

from contextlib import closing

import psycopg2
import psycopg2.errors
import pytest

from exactbatch import Append, Json, Pipeline
from support.logins import LOGIN
from support.roles import ROLES

PIPELINE = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("shop.item"))
# The modes of `lock table`, the weakest first.
MODES = (
    "access share",
    "row share",
    "row exclusive",
    "share update exclusive",
    "share",
    "share row exclusive",
    "exclusive",
    "access exclusive",
)
VIEWS = ("batch_history", "open_batches", "partition_state", "pipeline_state")
SEQUENCES = ("batch_batch_id_seq", "forward_stream_id_seq")
# The job's rights. "lock up to" is the strongest mode of `lock table` that it may take, and so all weaker ones: of the
# tables of which it deletes rows, all modes.
JOB = {
    "pipeline": "select, insert, update(registered_at), lock rows, lock up to row exclusive",
    "stored_offset": "select, insert, update(leader_epoch next_offset updated_at), lock rows, lock up to row exclusive",
    "batch": "select, insert, update(announced_at application_id committed_at dropped pruned records rejected "
    "replaced rows stages status tombstones), lock rows, lock up to row exclusive",
    "batch_range": "select, insert, update(records rejected replaced rows tombstones), lock rows, "
    "lock up to row exclusive",
    "batch_failure": "select, insert, update(error failed_at failures message retryable), lock rows, "
    "lock up to row exclusive",
    "coverage": "select, insert, delete, lock up to access exclusive",
    "rejected_record": "select, insert, delete, lock up to access exclusive",
    "outbox": "select, insert, delete, lock up to access exclusive",
    "empty_run": "select, insert, update(clear_number planned_at), delete, lock rows, lock up to access exclusive",
    "forward": "select, update(attempted_sequence forwarder last_sequence next_offsets sent_at sent_sequence "
    "topic_id), lock rows, lock up to access share",
    "fingerprint": "select, insert, delete, lock up to access exclusive",
    "joined_topic": "select, insert, lock up to row exclusive",
    "run_life": "select, insert, lock up to row exclusive",
    "time_boundary": "select, insert, lock up to row exclusive",
    "bound_transaction": "select, lock up to access share",
    "login_pipeline": "select, lock up to access share",
    "named_lock": "select, lock up to access share",
    "position_epoch": "select, lock up to access share",
    "replay_horizon": "select, lock up to access share",
    "schema_version": "select, lock up to access share",
}
READ = "select, lock up to access share"
ALL = "select, insert, update, delete, truncate, lock rows, lock up to access exclusive"
FUNCTIONS = (
    "bind_transaction(text)",
    "check_writer()",
    "log_key(text,uuid,integer)",
    "refusal_of_input(text,oid,integer)",
    "refuse_change_of_the_past()",
    "refuse_truncate()",
    "repeats_a_field(text)",
    "take_lock(text)",
    "try_lock(text)",
)
READERS_FUNCTIONS = (
    "log_key(text,uuid,integer)",
    "refusal_of_input(text,oid,integer)",
    "repeats_a_field(text)",
)
JOBS_FUNCTIONS = ("bind_transaction(text)", *READERS_FUNCTIONS, "take_lock(text)", "try_lock(text)")
# By role: what it may do with each table, with each view and with each sequence, and which functions it may execute.
EXPECTED = {
    "owner": (dict.fromkeys(JOB, ALL), ALL, "next, set", FUNCTIONS),
    "job": (JOB, READ, "", JOBS_FUNCTIONS),
    "reader": (dict.fromkeys(JOB, READ), READ, "", READERS_FUNCTIONS),
    "reporter": (dict.fromkeys(JOB, ""), READ, "", ()),
    # Any other login that may connect to the database.
    "nobody": (dict.fromkeys(JOB, ""), "", "", ()),
}


@pytest.fixture
def ledger(deployment):
    deployment.init(PIPELINE)
    deployment.execute(ROLES)
    deployment.execute(
        f"do $$ begin if to_regrole('test_nobody') is null then create role test_nobody {LOGIN}; end if; end $$"
    )
    return deployment


def denied(cursor, statement):
    """True if Postgres denies a statement for want of a privilege; it has no effect in any case."""
    cursor.execute("savepoint tried")
    try:
        cursor.execute(statement)
    except psycopg2.errors.InsufficientPrivilege:
        return True
    except psycopg2.Error:
        pass
    finally:
        cursor.execute("rollback to savepoint tried")
    return False


def rights(cursor, name, columns):
    """What the cursor's login may do with a table, as EXPECTED has it."""
    table = f"exactbatch.{name}"
    updated = [
        each for each in columns if not denied(cursor, f"update {table} set {each} = default where false")
    ]
    found = {
        "select": not denied(cursor, f"select {', '.join(columns)} from {table}"),
        "insert": not denied(cursor, f"insert into {table} default values"),
        "update" if updated == columns else f"update({' '.join(sorted(updated))})": bool(updated),
        "delete": not denied(cursor, f"delete from {table}"),
        "truncate": not denied(cursor, f"truncate {table} cascade"),
        "lock rows": not denied(cursor, f"select from {table} for share"),
    }
    locks = [mode for mode in MODES if not denied(cursor, f"lock table {table} in {mode} mode")]
    assert locks == list(MODES[: len(locks)])
    return ", ".join(
        [*(name for name, may in found.items() if may), *(f"lock up to {mode}" for mode in locks[-1:])]
    )


@pytest.mark.parametrize("role", EXPECTED)
def test_a_role_may_do_this_with_the_ledger_and_nothing_else(ledger, role):
    with closing(psycopg2.connect(ledger.superuser)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select c.relkind, c.relname, c.oid, array_agg(quote_ident(a.attname) order by a.attnum)::text[] "
            "from pg_class c "
            "join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped "
            "where c.relnamespace = 'exactbatch'::regnamespace and c.relkind not in ('i', 'I', 't') group by 1, 2, 3"
        )
        relations = cursor.fetchall()
        cursor.execute(
            "select p.proname || '(' || array_to_string(p.proargtypes::regtype[], ',') || ')', p.oid from pg_proc p "
            "where p.pronamespace = 'exactbatch'::regnamespace order by 1"
        )
        functions = cursor.fetchall()
    of_kind = {kind: [name for found, name, *_ in relations if found == kind] for kind in "rvS"}
    assert sum(map(len, of_kind.values())) == len(relations)
    assert (sorted(of_kind["v"]), sorted(of_kind["S"])) == (list(VIEWS), list(SEQUENCES))
    assert [name for name, _ in functions] == list(FUNCTIONS)
    tables, views, sequences, executable = EXPECTED[role]
    with (
        closing(psycopg2.connect(ledger.settings(role).postgres)) as connection,
        connection.cursor() as cursor,
    ):
        found = {name: rights(cursor, name, columns) for kind, name, _, columns in relations if kind == "r"}
        assert found == tables
        for kind, name, oid, _ in relations:
            if kind == "v":
                assert rights_of_view(cursor, name, oid) == views
            if kind == "S":
                steps = {"next": f"nextval('exactbatch.{name}')", "set": f"setval('exactbatch.{name}', 9)"}
                taken = [step for step, call in steps.items() if not denied(cursor, f"select {call}")]
                assert ", ".join(taken) == sequences
        cursor.execute("select has_schema_privilege('exactbatch', 'usage')")
        if not cursor.fetchone()[0]:
            functions = []
        cursor.execute(
            "select array(select oid from unnest(%s::oid[]) oid where has_function_privilege(oid, 'execute'))",
            ([oid for _, oid in functions],),
        )
        may = cursor.fetchone()[0]
        assert [name for name, oid in functions if oid in may] == list(executable)


def rights_of_view(cursor, name, oid):
    """As rights(), for a view: none of them can be written to, and Postgres says so before it looks at privileges."""
    cursor.execute(
        "select array(select p from unnest(array['select', 'insert', 'update', 'delete', 'truncate']) p "
        "where has_table_privilege(%s::oid, p))",
        (oid,),
    )
    found = cursor.fetchone()[0]
    locks = [mode for mode in MODES if not denied(cursor, f"lock table exactbatch.{name} in {mode} mode")]
    rows = ["lock rows"] if "update" in found else []
    return ", ".join([*found, *rows, *(f"lock up to {mode}" for mode in locks[-1:])])

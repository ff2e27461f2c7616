"""No function or operator of a stranger runs with the rights of whoever runs the program or docs/roles.sql."""

import sys
from contextlib import closing
from types import ModuleType
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
from typer.testing import CliRunner

from exactbatch import Aggregate, Append, Count, Json, Max, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.cli.app import app
from exactbatch.errors import StatementRefused
from exactbatch.ledger import migrate
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.catalog import read_facts
from exactbatch.postgres.connection import connect, transaction
from support.logins import LOGIN, as_login
from support.look_alikes import calls_of_look_alikes, plant_look_alikes, set_trap
from support.roles import ROLES, Deployment
from support.topics import record

PATH = "set search_path = pg_catalog, pg_temp;"
LINEAGE = "kafka_topic varchar, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
SINKS = {
    "append": Append("shop.appended"),
    "upsert": Upsert("shop.upserted", key=("id", "name")),
    "aggregate": Aggregate("shop.aggregated", group_by=("name",), aggregates={"n": Count(), "id": Max("id")}),
}


@pytest.fixture
def stranger(deployment: Deployment) -> str:
    """The connection string of a login that may create in the schema public, and may do nothing else."""
    deployment.execute(
        f"do $$ begin if to_regrole('test_stranger') is null then create role test_stranger {LOGIN}; end if; end $$"
    )
    deployment.execute("grant create on schema public to test_stranger")
    set_trap(deployment.superuser)
    return as_login(deployment.superuser, "test_stranger")


@pytest.fixture
def planted(deployment: Deployment, stranger: str) -> Deployment:
    """Look-alikes in each schema of a path in which somebody else may create."""
    assert plant_look_alikes(stranger, "public") > 2_000
    # Members of exactbatch_owner may create schemas, and "$user" puts some of these first on the paths of others.
    for login in ("postgres", "test_job", "test_reader"):
        deployment.execute(f"create schema {login}; grant usage on schema {login} to public", "owner")
        deployment.execute(
            f"create function {login}.format(text, name) returns text language plpgsql as "
            "$$ begin perform pg_catalog.nextval('trap.ran'); raise 'look-alike'; end $$",
            "owner",
        )
    return deployment


@pytest.mark.slow
def test_no_look_alike_is_called(spark: Any, planted: Deployment, make_topic: Any, monkeypatch: Any) -> None:
    module = ModuleType("pipelines_among_look_alikes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("EXACTBATCH_FAST_PATH", "off")

    def command(role: str | None, *arguments: str) -> None:
        """Run a command of the program, as a superuser or as a login in a role."""
        settings = planted.settings(role or "job")
        monkeypatch.setenv("EXACTBATCH_KAFKA", settings.as_environment()["EXACTBATCH_KAFKA"])
        monkeypatch.setenv("EXACTBATCH_POSTGRES", planted.superuser if role is None else settings.postgres)
        done = CliRunner().invoke(app, [*arguments])
        assert "look-alike" not in done.output
        assert done.exit_code in (0, 3), done.output

    for kind, sink in SINKS.items():
        topic = make_topic()
        topic.produce(*(record(n) for n in range(5)), b"bad")
        pipeline = Pipeline(
            name=topic.name,
            topics=(topic.name,),
            value=Json("id int, name text"),
            message_key=Json("id int, name text") if kind == "upsert" else None,
            sink=sink,
            max_rejects=1,
        )
        setattr(module, kind, pipeline)
        if kind == "append":
            planted.execute(
                f"{PATH} create table shop.appended (id numeric, "
                f"name varchar(5) check (name <> 'a'::varchar), {LINEAGE}); "
                "grant select, insert, delete on shop.appended to exactbatch_job; "
                "grant usage on schema shop to exactbatch_owner; grant select on shop.appended to exactbatch_owner"
            )
        command("owner", "register", f"{module.__name__}:{kind}")
        planted.execute(ROLES)
        command(None, "register", f"{module.__name__}:{kind}")
        planted.execute(ROLES)
        command("job", "plan", f"{module.__name__}:{kind}")
        planted.run(spark, pipeline)
        topic.produce(record(7))
        planted.run(spark, pipeline)
        planted.run(spark, pipeline, ReplayRequest(ranges=(RequestedRange(topic.name, 0, 2, 6),)))
        planted.execute("grant usage on schema shop to exactbatch_reader")
        planted.execute("grant select on all tables in schema shop to exactbatch_reader")
        assert audit(pipeline, planted.settings("reader"), values=True).is_exact
        command(None, "audit", f"{module.__name__}:{kind}", "--values")
        for role in (None, "job", "reader"):
            command(role, "status", f"{module.__name__}:{kind}")
            command(role, "doctor", f"{module.__name__}:{kind}")
    assert calls_of_look_alikes(planted.superuser) == 0


def test_look_alikes_are_called_without_the_path(
    deployment: Deployment, stranger: str, monkeypatch: Any
) -> None:
    """They would be, by each of the two that set the path: docs/roles.sql, and each connection."""
    plant_look_alikes(stranger, "public")
    with closing(connect(deployment.settings("owner").postgres, application="tests")) as connection:
        migrate(connection)
    deployment.execute(ROLES)
    assert ROLES.count(PATH) == 1
    with pytest.raises(psycopg2.errors.RaiseException, match="look-alike .* ran as postgres, superuser: on"):
        deployment.execute(ROLES.replace(PATH, ""))
    assert calls_of_look_alikes(deployment.superuser) == 1
    for module in ("connection", "session_settings"):
        monkeypatch.setattr(f"exactbatch.postgres.{module}.OWN_PATH", "set local search_path to public")
    with (
        closing(connect(deployment.superuser, application="tests")) as connection,
        pytest.raises(StatementRefused, match="look-alike .* ran as postgres, superuser: on"),
        transaction(connection) as cursor,
    ):
        read_facts(cursor, ["exactbatch.pipeline"])
    assert calls_of_look_alikes(deployment.superuser) == 2

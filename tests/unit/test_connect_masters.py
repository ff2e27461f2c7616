"""Commands that take a Spark master, given the URL of a Spark Connect server, which may contain a token."""

import pytest
from typer.testing import CliRunner

from exactbatch import Append, Json, Pipeline, Tables
from exactbatch.batch.engines.connect_url import find_address, is_connect
from exactbatch.cli import audit
from exactbatch.cli.app import app
from exactbatch.cli.run import run_tables
from exactbatch.errors import ConfigurationError
from exactbatch.errors.exit_status import WRONG_USAGE

URL = "sc://spark:15002/;token=SECRET"
FLIGHTS = Pipeline(name="flights", topics=("flights",), value=Json("id int"), sink=Append("public.flight"))


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        ("local[*]", "local[*]"),
        ("spark://host:7077", "spark://host:7077"),
        (URL, "sc://spark:15002"),
        ("sc://spark:15002", "sc://spark:15002"),
        ("sc://spark:15002;token=SECRET", "sc://spark:15002"),
    ],
)
def test_a_token_is_not_shown(master, shown):
    assert (find_address(master) if is_connect(master) else master) == shown


def test_a_connect_server_processes_no_tables():
    tables = Tables(name="shop", topics=("a", "b"), pipeline=lambda topic: FLIGHTS)
    with pytest.raises(
        ConfigurationError, match=r"one pipeline at a time, and 'shop' stands for many.*shop\.TABLE"
    ) as error:
        run_tables(tables, None, URL, as_json=False)
    assert "SECRET" not in str(error.value)


def test_a_connect_server_audits_nothing(monkeypatch):
    monkeypatch.setattr(audit, "load_any", lambda _: (FLIGHTS, None))
    done = CliRunner().invoke(app, ["audit", "flights", "--master", URL])
    assert done.exit_code == WRONG_USAGE
    assert "an audit cannot run on a Spark Connect server" in done.output
    assert "SECRET" not in done.output

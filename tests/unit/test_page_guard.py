"""What the page refuses before it asks any server, and that each of its answers has the headers."""

import asyncio
import json
import shutil
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.models.dag import DagModel
from jwt import InvalidTokenError

from exactbatch.airflow.page import databases, guard, routes
from exactbatch.airflow.page.airflow_versions import browsers_send_session
from exactbatch.airflow.page.dags import PipelineDag, PipelineDags
from exactbatch.airflow.page.routes import create_app
from exactbatch.errors import ConfigurationError
from exactbatch.planning.request import MOST_ENTRIES
from support.page_auth import PerDagAuthManager, session_of

OURS = {"sec-fetch-site": "same-origin"}
RANGE = {"topic": "t", "partition": 0, "from_offset": 0, "until_offset": 1}


class Everything(PerDagAuthManager):
    """Permits everything."""

    async def get_user_from_token(self, token):
        if not token:
            raise InvalidTokenError("no session")
        return await super().get_user_from_token(token)

    def is_authorized_dag(self, **_):
        return True


@pytest.fixture
def page(monkeypatch):
    """The page's application, with one pipeline whose servers are not there."""

    def unreachable(conn_id):
        raise ConfigurationError(f"no {conn_id}")

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", f"{__name__}.{Everything.__name__}")
    monkeypatch.setattr(databases, "airflow_connection", unreachable)

    def team(dag_id):
        if "\0" in dag_id:
            raise ValueError("A string literal cannot contain NUL (0x00) characters.")

    monkeypatch.setattr(DagModel, "get_team_name", team, raising=False)
    dag = PipelineDag("one", False, "kafka", "postgres", False, None)
    monkeypatch.setattr(PipelineDags, "find", lambda _self, wanted: [dag] if "one" in wanted else [])
    create_auth_manager()
    yield create_app()
    purge_cached_app()


@pytest.fixture
def ask(page):
    """Send one request as somebody who may do everything; return the answer, which has the headers."""

    def ask(method, path, token="somebody", **given):
        async def send():
            transport = httpx.ASGITransport(app=page, raise_app_exceptions=False)
            session = session_of(token) if token else {}
            async with httpx.AsyncClient(transport=transport, base_url="http://page", **session) as client:
                return await client.request(method, path, **given)

        answer = asyncio.run(send())
        assert answer.headers["x-content-type-options"] == "nosniff", (path, answer)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        answer.text.encode()
        return answer

    return ask


def preview(ask, conf):
    if isinstance(conf, bytes):
        given = {"content": conf, "headers": {**OURS, "content-type": "application/json"}}
    else:
        given = {"json": conf, "headers": OURS}
    return ask("POST", "/data/pipelines/one/preview", **given)


@pytest.mark.parametrize(
    "path",
    [
        "/data/pipelines/one%00",
        "/data/pipelines/one/rejects/list?kind=%00",
        "/data/pipelines/one/rejects/list?partition=" + "9" * 5000,
        "/data/pipelines/one/rejects/list?offset=-2",
        "/data/pipelines/one/strips?steps=" + "x" * 5000,
        "/data/pipelines/one/gaps?skip=" + "9" * 30,
    ],
)
def test_an_address_that_names_nothing_is_refused(ask, path):
    answer = ask("GET", path)
    assert answer.status_code == 422
    assert len(answer.text) < 600


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"batch_ids": [2] * 101}, f"expected at most {MOST_ENTRIES} batch_ids, found 101"),
        ({"batch_ids": [2] * 4000}, f"expected at most {MOST_ENTRIES} batch_ids, found 4,000"),
        ({"ranges": [RANGE] * 1000}, f"expected at most {MOST_ENTRIES} ranges, found 1,000"),
        ({"ranges": [{**RANGE, "topic": "t\0"}]}, r"the name of a topic, found 't\\x00'"),
        (b'{"ranges": [{"topic": "\\ud800", "partition": 0, "from_offset": 0, "until_offset": 1}]}', "ud800"),
        (b'{"batch_ids": ["\\ud800"]}', "ud800"),
        (b'{"\\ud800": 1}', "ud800"),
        (b'["\\ud800"]', "valid dictionary"),
        ({"batch_ids": ["1" * 5000]}, "a batch id as a whole number from 0 to 9223372036854775807"),
        ({"batch_ids": [2**63]}, "a batch id as a whole number from 0 to 9223372036854775807"),
        ({"ranges": [{**RANGE, "until_offset": "1" * 5000}]}, "until_offset as a whole number"),
        ({"ranges": [{**RANGE, "more": ["x" * 90_000]}]}, "expected each of ranges as"),
        ({"batch_ids": "x" * 90_000}, "expected batch_ids as a list"),
        ({"x" * 90_000: 1}, "expected the parameters"),
        ({"start": "x" * 90_000, "end": "x"}, "expected start as an ISO 8601 time"),
        ({"available_only": [[["x" * 90_000]]]}, "expected available_only as true or false"),
        ({}, "give ranges or batch_ids"),
    ],
)
def test_a_request_that_no_pipeline_can_answer_is_refused_in_few_words(ask, conf, said):
    answer = preview(ask, conf)
    assert answer.status_code == 422, answer.text
    assert said in answer.text
    assert len(answer.text) < 600


@pytest.mark.parametrize("conf", [b'{"batch_ids": [' + b"1" * 5000 + b"]}", b"[" * 50_000, b"{", b"\xff"])
def test_a_body_that_cannot_be_read_is_refused(ask, conf):
    assert preview(ask, conf).status_code in (400, 422)


def test_a_large_body_is_refused(ask):
    answer = preview(ask, b" " * 2_000_000)
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/none", "/none", "/data/pipelines/none"])
def test_other_answers_have_the_headers(ask, path):
    assert ask("GET", path).status_code in (200, 404)
    assert ask("DELETE", path).status_code in (404, 405)


def test_an_answer_to_a_failure_has_the_headers(ask, monkeypatch):
    monkeypatch.setattr(PipelineDags, "find", lambda *_: 1 / 0)
    assert ask("GET", "/data/pipelines/one").status_code == 500


def test_without_a_session_each_answer_has_the_headers(ask):
    for path in ("/", "/static/page.js"):
        assert ask("GET", path, token=None).status_code == (401 if browsers_send_session() else 200)
    for path in ("/data/pipelines", "/data/pipelines/one"):
        assert ask("GET", path, token=None).status_code == 401


def test_more_requests_than_have_a_turn_wait_without_a_thread_and_are_told_to_come_again(page, monkeypatch):
    """The page itself needs no turn: it loads, and asks again."""
    monkeypatch.setattr(guard, "_WAIT", 0.3)
    threads, release = [], threading.Event()

    def find(*_):
        threads.append(threading.get_ident())
        release.wait(60)
        return []

    monkeypatch.setattr(PipelineDags, "find", find)

    async def ask_all():
        transport = httpx.ASGITransport(app=page)
        session = session_of("somebody")
        async with httpx.AsyncClient(transport=transport, base_url="http://page", **session) as client:
            asked = [asyncio.ensure_future(client.get("/data/pipelines/one")) for _ in range(45)]
            refused, held = await asyncio.wait(asked, timeout=5)
            assert {each.result().status_code for each in refused} == {503}
            assert {each.result().headers["retry-after"] for each in refused} == {"2"}
            assert {each.result().headers["x-content-type-options"] for each in refused} == {"nosniff"}
            assert len(refused) == 45 - 4
            assert len(set(threads)) == len(held) == 4
            assert (await client.get("/static/page.js")).status_code == 200
            release.set()
            assert {each.status_code for each in await asyncio.gather(*held)} == {404}
            # A turn that ends is free again, however its request ended; a slow machine may take long for all of them.
            monkeypatch.setattr(guard, "_WAIT", 60)
            again = [client.get("/data/pipelines/one") for _ in range(20)]
            assert {each.status_code for each in await asyncio.gather(*again)} == {404}

    asyncio.run(ask_all())


def asked(url, *statuses, method="GET", kept=None):
    """The outcome of a call of api.js, how many requests it sent, how long it waited, and the sessions that they had.

    The statuses of the answers are given, and time passes at once. `kept` is the token that Airflow keeps, if any.
    """
    code = """
        const [url, method, kept, ...statuses] = process.argv.slice(1);
        const sent = [], waited = [], sessions = [];
        globalThis.localStorage = { getItem: (name) => (name === "token" && kept) || null };
        globalThis.setTimeout = (call, milliseconds) => { waited.push(milliseconds); call(); };
        globalThis.fetch = async (address, options) => {
          sent.push(address);
          sessions.push(options.headers?.Authorization ?? null);
          const status = Number(statuses.shift());
          return { status, ok: status < 300, headers: new Headers({ "Retry-After": "2" }), json: async () => ({}) };
        };
        const { pipeline, pipelines } = await import(url);
        const call = method === "GET" ? pipelines() : pipeline("one").trigger({}, null);
        const outcome = await call.then(() => "answered", (error) => error.status);
        console.log(JSON.stringify([outcome, sent.length, waited, sessions]));
    """
    given = [url, method, kept or "", *map(str, statuses)]
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code, *given], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, as the tests in a browser do")
def test_the_page_asks_again_and_not_at_once_while_all_turns_are_taken(tmp_path):
    script = tmp_path / "api.mjs"
    script.write_text((Path(routes.__file__).parent / "static" / "api.js").read_text())
    outcome, sent, waited, _ = asked(script.as_uri(), 503, 503, 200)
    assert (outcome, sent) == ("answered", 3)
    assert all(2000 <= each <= 4000 for each in waited)
    assert asked(script.as_uri(), *[503] * 9)[:2] == [503, 4]
    assert asked(script.as_uri(), 500, 200)[:2] == [500, 1]
    # Airflow may have started the run, so it is not asked twice.
    assert asked(script.as_uri(), 503, 200, method="POST")[:2] == [503, 1]
    # The token of Airflow 3.0, only where the session's cookie is not enough, and once.
    assert asked(script.as_uri(), 200, kept="t")[3] == [None]
    outcome, sent, _, sessions = asked(script.as_uri(), 401, 200, kept="t")
    assert (outcome, sent, sessions) == ("answered", 2, [None, "Bearer t"])
    assert asked(script.as_uri(), 401, 401, 200, kept="t")[:2] == [401, 2]
    assert asked(script.as_uri(), 401, 200)[:2] == [401, 1]

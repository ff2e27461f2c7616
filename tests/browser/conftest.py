"""A browser, and an Airflow for it: pipelines with a history by SQL, one without any, and one that Airflow can run."""

import os
import shutil
from contextlib import closing
from datetime import timedelta

import pytest
from playwright.sync_api import expect, sync_playwright

from exactbatch import Append, Json, Pipeline
from exactbatch.ledger import Ledger, migrate
from exactbatch.postgres.connection import connect, transaction
from support.environment import HOME
from support.jvm import quick_spark
from support.page_airflow import client_of, serving_airflow
from support.page_invoices import DAG, INVOICES, module_of, produce_invoices
from support.page_ledger import fail_newest, tell_story

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
NAMES = ("flights", "orders", "failing_payments")
EMPTY = "refunds"  # it has no batch
SIZES = {"desk": {"width": 1300, "height": 900}, "phone": {"width": 390, "height": 844}}
# A state is waited for, however slow the machine: this only ends a test whose state never comes.
PATIENCE = 120_000  # milliseconds
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def airflow(stack, make_topic_once, tmp_path_factory):
    pipelines = [
        Pipeline(
            name=name,
            topics=(name,),
            value=Json("id int, name text"),
            sink=Append(f"public.{name}"),
            freshness=timedelta(microseconds=1) if name == "orders" else None,
        )
        for name in NAMES
    ]
    with closing(connect(stack.postgres_dsn, application="tests", timeout=10)) as connection:
        migrate(connection)
        for pipeline in pipelines:
            tell_story(stack, connection, make_topic_once, pipeline)
        message = "column amount is numeric, expected double precision. Change the column."
        fail_newest(connection, "failing_payments", message, retryable=False)
        empty = Pipeline(name=EMPTY, topics=(EMPTY,), value=Json("id int"), sink=Append(f"public.{EMPTY}"))
        make_topic_once(partitions=1, name=EMPTY)
        with transaction(connection):
            Ledger(connection).registry.register(INVOICES)
            Ledger(connection).registry.register(empty)
    produce_invoices(make_topic_once(partitions=2, name=INVOICES.name))
    with serving_airflow(
        stack,
        [*pipelines, empty],
        tmp_path_factory.mktemp("page"),
        environment={"SPARK_SUBMIT_OPTS": quick_spark(HOME)},
        files={"invoices_of_page.py": module_of(is_fixed=False), "dags/invoices.py": DAG},
    ) as airflow:
        yield airflow


@pytest.fixture(scope="session")
def browser():
    assert CHROMIUM, "run .ci/setup chromium, or name a browser in $CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


def answering(status, body):
    return lambda route: route.fulfill(status=status, json=body)


@pytest.fixture
def problems():
    """Errors that pages have logged, and requests to any other server than Airflow's: none, after each test."""
    problems = []
    yield problems
    assert problems == []


@pytest.fixture
def open_page(airflow, browser, problems):
    """Open a path as a user of a role: open_page("/exactbatch/", role="viewer", theme="dark", device="phone").

    `answers` are given in place of those of the server, by path: (status, JSON).
    """
    contexts = []

    def open_(path, *, role="user", theme="light", device="desk", answers=()):
        context = browser.new_context(
            viewport=SIZES[device],
            color_scheme=theme,
            has_touch=device == "phone",
            locale="en-GB",
            timezone_id="UTC",
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        token = client_of(airflow, role).cookies["_token"]
        context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
        page = context.new_page()
        for asked, answer in dict(answers).items():
            page.route(f"{airflow.url}{asked}", answering(*answer))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                asked.url.startswith((airflow.url, f"blob:{airflow.url}", "data:"))
                or problems.append(asked.url)
            ),
        )
        page.goto(f"{airflow.url}{path}")
        return page

    yield open_
    for context in contexts:
        context.close()

"""From a group of rejects on the Pipelines page to their rows in the target, through Airflow and Spark."""

from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from exactbatch.postgres.connection import connect, transaction
from support.page_airflow import client_of
from support.page_invoices import GOOD, WRONG, module_of

pytestmark = pytest.mark.timeout(900)
OURS = {"sec-fetch-site": "same-origin"}


def logs_of(airflow, run_id):
    """The states of a run's tasks, and the ends of their logs."""
    logs = sorted((airflow.home / "logs").rglob(f"*run_id={run_id}*/**/*.log"))
    return "\n".join(
        [str(airflow.task_states("invoices", run_id)), *(each.read_text()[-4000:] for each in logs)]
    )


def test_rejects_are_found_on_the_page_and_replayed_from_it_after_a_fix(open_page, airflow, stack):
    airflow.start("scheduler")
    airflow.wait_for_dag("invoices")
    run_id = airflow.trigger("invoices")
    assert airflow.wait_for_run("invoices", run_id) == "success", logs_of(airflow, run_id)

    page = open_page("/exactbatch/")
    page.get_by_role("link", name="invoices", exact=True).click()
    group = page.locator("details", has_text="is not a number")
    expect(group).to_contain_text(f"{WRONG} records")
    page.get_by_text("As a table").first.click()
    strip = page.get_by_role("region", name="Table of invoices[0]")
    expect(strip.get_by_role("cell", name="1 reject")).to_have_count(WRONG)  # a step is one offset
    page.evaluate("window.stayed = true")

    seen = open_page("/exactbatch/?dag=invoices", role="viewer")
    expect(seen.locator("details", has_text="is not a number")).to_contain_text(f"{WRONG} records")
    expect(seen.get_by_role("button", name="Replay")).to_have_count(0)
    conf = {"ranges": [{"topic": "invoices", "partition": 0, "from_offset": GOOD, "until_offset": GOOD + 1}]}
    viewer = client_of(airflow, "viewer")
    preview = "/exactbatch/data/pipelines/invoices/preview"
    assert viewer.post(preview, json=conf, headers=OURS).status_code == 403
    body = {"logical_date": None, "conf": conf}
    assert viewer.post("/api/v2/dags/invoices/dagRuns", json=body).status_code == 403

    (Path(airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"]).parent / "invoices_of_page.py").write_text(
        module_of(is_fixed=True)
    )
    group.locator("summary").click()
    group.get_by_role("button", name="Replay these…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{WRONG} rejects")
    expect(dialog).not_to_contain_text("is paused")
    dialog.get_by_label("Replace 0 rows of public.invoices").check()
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog).to_contain_text("Airflow has created the run")
    run_id = dialog.get_by_role("link").inner_text()
    dialog.get_by_role("button", name="Close").click()
    assert airflow.wait_for_run("invoices", run_id) == "success", logs_of(airflow, run_id)

    expect(page.get_by_text("No record is rejected.")).to_be_visible()
    expect(strip).to_contain_text("replay")
    expect(strip).not_to_contain_text("reject")
    newest = page.get_by_role("region", name="Table of batches").get_by_role("row").nth(1)
    for cell in ("replay", "committed", run_id):
        expect(newest).to_contain_text(cell)
    expect(newest.locator("[data-label=Rows]")).to_have_text(str(WRONG))
    expect(newest.locator("[data-label=Rejected]")).to_have_text("0")
    assert page.evaluate("window.stayed")
    with (
        closing(connect(stack.postgres_dsn, application="tests", timeout=10)) as connection,
        transaction(connection) as cursor,
    ):
        cursor.execute(
            "select count(*) as rows, count(*) filter (where mod(cents, 100) = 50) as halves from public.invoices"
        )
        assert tuple(cursor.fetchone()) == (2 * GOOD + WRONG, 2 * GOOD + WRONG)

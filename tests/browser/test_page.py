"""The Pipelines page in a browser: read, operated by keyboard and by touch, checked for accessibility, and pictured.

Run by `make test-browser`, which needs Chromium and fetches axe-core. The pictures are in build/page.
"""

import re
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from exactbatch.airflow.parameters import parameters
from exactbatch.postgres.connection import connect, transaction
from support.environment import HOME, ROOT
from support.page_airflow import client_of
from support.page_ledger import SIZE, fail_newest

pytestmark = pytest.mark.timeout(900)
AXE = HOME / "npm" / "package" / "axe.min.js"
PICTURES = ROOT / "build" / "page"
TRIGGER_FORM = [each.schema["title"] for each in parameters().values()]


def strip_of(page, partition=0):
    strip = page.get_by_role("slider").nth(partition)
    expect(strip).to_be_visible()
    return strip


def words(strip):
    return strip.get_attribute("aria-valuetext")


def test_all_pipelines_the_most_urgent_first(open_page):
    page = open_page("/exactbatch/", role="viewer")
    rows = page.get_by_role("rowheader")
    expect(rows).to_have_count(6)  # with the one of the second bundle
    expect(rows.first).to_have_text("failing_payments")
    expect(page.get_by_role("row").nth(1)).to_contain_text("Change the column.")
    expect(page.get_by_role("row", name="flights")).to_contain_text(str(3 * (SIZE + 20)))
    page.get_by_label("Find").fill("orders")
    expect(rows).to_have_count(1)


def test_an_overdue_pipeline_is_marked_by_a_word_and_a_colour(open_page):
    page = open_page("/exactbatch/", role="viewer")
    mark = page.locator(".badge.bad", has_text="overdue")
    expect(mark).to_have_count(2)  # a tile, and the row; the timestamp is read in a thread
    expect(page.get_by_role("row").nth(2)).to_contain_text("orders")
    expect(page.get_by_role("row").nth(2)).to_contain_text("old, allowed")
    page.get_by_role("button", name="overdue").click()
    expect(page.get_by_role("rowheader")).to_have_count(1)
    page.get_by_role("link", name="orders").click()
    expect(mark).to_have_count(1)
    expect(page.locator(".facts .alarm")).to_contain_text("overdue: oldest record")
    page = open_page("/exactbatch/?dag=flights", role="viewer")
    expect(page.locator(".facts")).to_contain_text("Lag")
    expect(page.locator(".facts")).not_to_contain_text("Freshness")


def test_a_strip_is_read_and_operated_by_keyboard(open_page):
    page = open_page("/exactbatch/?dag=flights")
    strip = strip_of(page)
    strip.focus()
    heard = []
    for _ in range(16):
        heard.append(words(strip))
        page.keyboard.press("ArrowRight")
    told = " ".join(heard)
    assert "offsets 0 to 49: batch 1" in told
    assert "lost: retention removed" in told
    assert "replay 4" in told
    assert "reject" in told
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_text("selected 0 to 49")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("selected 0 to 49")).to_have_count(0)


def test_zoom_goes_from_the_whole_log_to_single_records_and_survives_a_reload(open_page):
    page = open_page("/exactbatch/?dag=flights")
    strip = strip_of(page)
    strip.focus()
    for _ in range(8):
        before = page.url
        page.keyboard.press("+")
        page.wait_for_url(lambda url, before=before: url != before)
    query = parse_qs(urlsplit(page.url).query)
    assert int(query["until"][0]) - int(query["first"][0]) <= 16
    expect(page.get_by_text("All rows of the ledger in this window")).to_be_visible()
    page.reload()
    expect(strip_of(page)).to_have_attribute("aria-valuemax", str(int(query["until"][0]) - 1))


def test_everything_drawn_is_also_a_table(open_page):
    page = open_page("/exactbatch/?dag=flights")
    strip_of(page)
    page.get_by_text("As a table").first.click()
    table = page.get_by_role("region", name="Table of flights[0]")
    for word in ("batch 1", "replay 4", "backfill 4", "lost", "in flight", "reject", "not processed yet"):
        expect(table).to_contain_text(word)


def test_a_replay_is_previewed_confirmed_and_triggered_through_airflow(open_page, airflow):
    page = open_page("/exactbatch/?dag=flights")
    strip_of(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.locator(".selected").get_by_role("button", name="Replay…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("50 rows of public.flights")
    expect(dialog).to_contain_text("The DAG is paused")
    start = dialog.get_by_role("button", name="Replay", exact=True)
    expect(start).to_be_disabled()
    dialog.get_by_label("Note for the run").fill("wrong rate")
    dialog.get_by_label("Replace 50 rows of public.flights").check()
    start.click()
    expect(dialog).to_contain_text("Airflow has created the run")
    run_id = dialog.get_by_role("link").inner_text()
    run = airflow.request("GET", f"/dags/flights/dagRuns/{run_id}")
    assert run["note"] == "wrong rate"
    assert run["triggering_user_name"] == "user"
    assert run["conf"]["ranges"] == [
        {"topic": "flights", "partition": 0, "from_offset": 0, "until_offset": 50}
    ]


@pytest.mark.parametrize(
    ("others", "retracts", "told", "confirmed"),
    [
        (
            ["public.a", "public.b"],
            True,
            "retracts 7 rows of public.main, the rows of these offsets in public.a, public.b, and 1 reject",
            "Replace 7 rows of public.main, and the rows of these offsets in public.a, public.b",
        ),
        ([], True, "retracts 7 rows of public.main and 1 reject", "Replace 7 rows of public.main"),
        ([], False, "public.main keeps no history", "Apply 9 offsets to public.main again"),
    ],
)
def test_a_replay_names_every_target_and_says_what_it_retracts(open_page, others, retracts, told, confirmed):
    preview = {
        **{"ranges": [], "removed": [], "compacted": [], "widened": []},
        **{"target": "public.main", "other_targets": others, "retracts": retracts, "is_derived": False},
        **{"rows": 7, "rejects": 1, "offsets": 9, "all_ranges": 0, "missing_index": None},
    }
    path = "/exactbatch/data/pipelines/flights/preview"
    page = open_page("/exactbatch/?dag=flights", answers={path: (200, preview)})
    page.get_by_role("button", name="Replay batch 40").click()
    expect(page.get_by_role("dialog")).to_contain_text(told)
    expect(page.get_by_role("checkbox", name=confirmed, exact=True)).to_be_visible()


def test_a_batch_and_a_group_of_rejects_can_be_replayed(open_page):
    page = open_page("/exactbatch/?dag=flights")
    page.get_by_role("button", name="Replay batch 40").click()
    expect(page.get_by_role("dialog")).to_contain_text("150 rows of public.flights")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    group = page.locator("details", has_text="not a JSON object")
    group.locator("summary").click()
    group.get_by_role("button", name="Replay these…").click()
    expect(page.get_by_role("dialog")).to_contain_text("4 rejects")


def test_a_viewer_sees_and_cannot_act(open_page):
    page = open_page("/exactbatch/?dag=flights", role="viewer")
    expect(page.get_by_role("rowheader").first).to_be_visible()
    strip_of(page).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".selected")).to_contain_text("Zoom to it")
    page.locator("details", has_text="not a JSON object").locator("summary").click()
    expect(page.locator(".reject-row").first).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)
    expect(page.get_by_role("button", name="Show the record")).to_have_count(0)


def test_a_hostile_record_is_text(open_page):
    page = open_page("/exactbatch/?dag=flights")
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.locator("details", has_text="not a JSON object").locator("summary").click()
    page.get_by_role("button", name="Show the record at 750").click()
    expect(page.locator(".record pre").nth(1)).to_have_text("<script>alert(1)</script>")
    expect(page.locator(".record pre").nth(2)).to_contain_text("trace: abc")
    assert page.locator("main script, main b").count() == 0


def test_offsets_before_the_beginning_of_the_pipeline_are_not_waiting(open_page):
    """The pipeline began at 40, and stands at 60 of 80; retention has removed 10 of the offsets before it."""
    strip = {
        **{"topic": "flights", "topic_id": "1", "partition": 0, "horizon": None, "step": 1, "is_exact": True},
        **{"first_offset": 40, "next_offset": 60, "earliest": 10, "last_stable": 80, "high_watermark": 80},
        **{"segments": [[40, 60, "batch", 7, 7, False]], "exceptions": [], "in_flight": [], "rejects": []},
    }
    answer = {"first": 0, "until": 80, "all": 1, "skip": 0, "strips": [strip]}
    page = open_page(
        "/exactbatch/?dag=flights", answers={"/exactbatch/data/pipelines/flights/strips*": (200, answer)}
    )
    slider = strip_of(page)
    slider.focus()
    heard = []
    for _ in range(3):
        heard.append(words(slider))
        page.keyboard.press("ArrowRight")
    assert heard == [
        "offsets 0 to 39: before the beginning of the pipeline · no longer in the log",
        "offsets 40 to 59: batch 7",
        "offsets 60 to 79: not processed yet",
    ]
    expect(page.locator(".legend .swatch.before")).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")


def newest_first(page):
    """The batches of a pipeline in the table, as numbers."""
    rows = page.get_by_role("region", name="Table of batches").get_by_role("rowheader")
    expect(rows.nth(10)).to_be_attached()
    return [int(each) for each in rows.all_inner_texts()]


def test_the_batch_of_a_link_comes_first_unless_it_is_among_those_that_are_listed(open_page):
    newest = newest_first(open_page("/exactbatch/?dag=flights"))
    assert len(newest) == 12
    wanted = newest[-1] - 5  # the 17th
    linked = open_page(f"/exactbatch/?dag=flights&batch={wanted}")
    assert newest_first(linked) == [wanted, *newest]
    expect(linked.locator("tr.marked th")).to_have_text(str(wanted))
    assert newest_first(open_page(f"/exactbatch/?dag=flights&batch={newest[3]}")) == newest


def test_no_batch_is_left_out_that_was_planned_while_the_tab_was_hidden(open_page, airflow):
    page = open_page("/exactbatch/?dag=flights")
    known = newest_first(page)
    real = client_of(airflow, "user").get("/exactbatch/data/pipelines/flights/batches").json()
    newest = known[0] + 1000

    def answer(route):
        before = int(parse_qs(urlsplit(route.request.url).query).get("before", [newest + 1])[0])
        batches = [{**real["batches"][0], "batch_id": before - each} for each in range(1, 51)]
        route.fulfill(json={**real, "batches": batches})

    page.route(re.compile(r"/flights/batches(\?|$)"), answer)
    rows = page.get_by_role("region", name="Table of batches").get_by_role("rowheader")
    expect(rows.first).to_have_text(str(newest))
    for listed in (37, 62):
        page.get_by_role("button", name="Older batches").click()
        expect(rows).to_have_count(listed)
    assert rows.all_inner_texts() == [str(newest - each) for each in range(62)]


def test_a_failed_replay_leads_to_its_own_task_and_its_age_goes_on(open_page, airflow):
    path = "/exactbatch/data/pipelines/flights"
    state = client_of(airflow, "user").get(path).json()
    at = datetime.now(UTC).isoformat()
    error = {
        **{
            "batch_id": 7,
            "run_id": "manual__7",
            "kind": "replay",
            "error": "TargetMismatch",
            "message": "why",
        },
        **{"failures": 3, "retryable": True, "failed_at": at, "hint": ""},
    }
    page = open_page("/exactbatch/?dag=flights", answers={path: (200, {**state, "error": error})})
    link = page.get_by_role("link", name="Task and log")
    expect(link).to_have_attribute("href", re.compile("/tasks/process_replay$"))
    said = page.locator(".note p", has_text="Failed 3 times")
    before = said.text_content()
    expect(said).not_to_have_text(before)


def test_batches_are_drawn_in_the_order_of_their_commits(open_page, airflow):
    """Not in that of their IDs: a replay and a backfill have committed before advances with lower IDs."""
    listed = client_of(airflow, "user").get("/exactbatch/data/pipelines/flights/batches").json()["batches"]
    committed = [datetime.fromisoformat(each["committed_at"]) for each in listed if each["committed_at"]]
    newest = sorted(committed, reverse=True)
    assert newest != committed
    chart = open_page("/exactbatch/?dag=flights").locator("figure", has_text="Throughput and duration")
    chart.get_by_text("As a table").click()
    times = chart.locator("tbody td:first-child")
    expect(times).to_have_count(len(newest))
    shown = [each.rpartition(", ")[2] for each in times.all_inner_texts()]  # without the day
    assert shown == [f"{each.astimezone(UTC):%H:%M:%S}" for each in newest]


def test_what_happens_is_shown_without_a_reload(open_page, stack):
    page = open_page("/exactbatch/?dag=orders")
    expect(page.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    expect(strip_of(page)).to_be_visible()
    page.evaluate("window.stayed = true")
    with closing(connect(stack.postgres_dsn, application="tests", timeout=10)) as connection:
        fail_newest(connection, "orders", "the target is gone. Create it.", retryable=True)
    expect(page.get_by_text("the target is gone. Create it.")).to_be_visible()
    assert page.evaluate("window.stayed")
    with (
        closing(connect(stack.postgres_dsn, application="tests", timeout=10)) as connection,
        transaction(connection) as cursor,
    ):
        cursor.execute("delete from exactbatch.batch_failure where message like 'the target is gone%'")


def test_the_tabs_of_airflow_show_the_page_and_its_links_lead_back(open_page, airflow):
    page = open_page("/plugin/exactbatch")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="flights").click()
    expect(frame.get_by_role("heading", name="flights", exact=True)).to_be_visible()
    page.wait_for_url("**/plugin/exactbatch/exactbatch/?dag=flights")
    frame.get_by_role("link", name="DAG", exact=True).click()
    page.wait_for_url(f"{airflow.url}/dags/flights")
    # The DAG's tag has the same name, and may be there before the tab.
    page.locator('a[href$="/dags/flights/plugin/exactbatch-dag"]').click()
    expect(page.frame_locator("iframe").get_by_role("slider").first).to_be_visible()


def test_where_there_is_nothing_yet_the_page_says_what_comes_next(open_page):
    page = open_page("/exactbatch/", answers={"/exactbatch/data/pipelines": (200, {"pipelines": []})})
    expect(page.get_by_text("There is no pipeline yet")).to_be_visible()
    expect(page.get_by_role("table")).to_have_count(0)
    page = open_page("/exactbatch/?dag=refunds")
    expect(page.get_by_text("No offset is stored yet")).to_be_visible()
    expect(page.get_by_text("There is no batch yet, and the DAG is paused.")).to_be_visible()
    expect(page.get_by_text("No record is rejected.")).to_be_visible()
    expect(page.get_by_text("Drag over a strip")).to_be_hidden()


def test_what_prevents_the_page_is_shown_until_it_has_passed(open_page, problems):
    message = "expected version 12 of the ledger, found version 9. Run `exactbatch migrate` to upgrade it."
    state = "/exactbatch/data/pipelines/orders"
    page = open_page("/exactbatch/?dag=orders", answers={state: (409, {"message": message})})
    expect(page.get_by_role("alert")).to_have_text(message)
    expect(page.get_by_text("The page tries again by itself.")).to_be_visible()
    expect(page.get_by_role("heading", name="Coverage")).to_be_hidden()
    page.unroute_all()
    expect(page.get_by_role("heading", name="Coverage")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    assert {"409" in each for each in problems} == {True}
    problems.clear()  # what the browser itself has logged about these answers


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_is_the_one_chosen_in_airflow(open_page, theme):
    other = {"light": "dark", "dark": "light"}[theme]
    page = open_page("/exactbatch/", theme=other)
    assert page.evaluate("document.documentElement.className") == other
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    page.reload()
    assert page.evaluate("document.documentElement.className") == theme


def test_the_trigger_form_begins_with_what_people_fill_in_most(open_page):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = open_page("/dags/flights")
    page.set_viewport_size({"width": 1300, "height": 1700})
    page.get_by_role("button", name="Trigger").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Process again")
    if not dialog.get_by_text("Time window: start").is_visible():
        dialog.get_by_text("Process again").first.click()
    asked = [dialog.get_by_text(title, exact=False).first for title in TRIGGER_FORM]
    for each in asked:
        expect(each).to_be_visible()
    tops = [each.bounding_box()["y"] for each in asked]
    assert tops == sorted(tops)
    dialog.screenshot(path=PICTURES / "trigger.png", animations="disabled")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("device", ["desk", "phone"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(open_page, theme, device):
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert AXE.exists(), "run `make test-browser`, which fetches axe-core"
    for name, path in (("all", "/exactbatch/"), ("one", "/exactbatch/?dag=failing_payments")):
        page = open_page(path, theme=theme, device=device)
        expect(page.get_by_role("rowheader").first).to_be_attached()
        if name == "one":
            expect(page.locator(".u-wrap").first).to_be_attached()
            expect(page.locator("details summary").last).to_be_visible()
        page.screenshot(path=PICTURES / f"{name}-{device}-{theme}.png", full_page=True)
        check(page)
        if name == "one":
            page.get_by_role("button", name="Replay batch").first.click()
            expect(page.get_by_role("dialog")).to_contain_text("retracts")
            page.screenshot(path=PICTURES / f"replay-{device}-{theme}.png")
            check(page)


def check(page):
    page.evaluate(Path(AXE).read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    assert [
        (each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found["violations"]
    ] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

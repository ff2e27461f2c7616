// All pipelines that the user may see, the most urgent first.

import { live, pipelines } from "./api.js";
import { age, airflowLink, el, fill, keyed, refreshAges } from "./dom.js";
import { compact, count, duration, overdueText, plural, rate } from "./format.js";
import { OVERDUE, stateBadge, URGENCY } from "./states.js";

const EVERY = 5000; // milliseconds
const SOON = 1000;
const words = (row) => (row.overdue ? [row.state, OVERDUE] : [row.state]);
const urgency = (row) => Math.min(...words(row).map((word) => URGENCY.indexOf(word)));
const SORTS = {
  urgency: ["Most urgent first", (a, b) => urgency(a) - urgency(b) || a.pipeline.localeCompare(b.pipeline)],
  name: ["By name", (a, b) => a.pipeline.localeCompare(b.pipeline)],
  lag: ["Most lag first", (a, b) => (b.lag ?? -1) - (a.lag ?? -1)],
  retention: [
    "Retention soonest first",
    (a, b) => (a.retention_seconds ?? Infinity) - (b.retention_seconds ?? Infinity),
  ],
};

export function showOverview() {
  const search = el("input", { type: "search", id: "search", placeholder: "Name or state", oninput: draw });
  const sort = el(
    "select",
    { id: "sort", onchange: draw },
    Object.entries(SORTS).map(([name, [label]]) => el("option", { value: name }, label)),
  );
  const tiles = el("div", { class: "tiles" });
  const body = el("tbody");
  const empty = el("p", { class: "quiet", hidden: true });
  document.getElementById("top").append(
    el("h1", {}, "Pipelines"),
    el(
      "form",
      { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", { for: "search" }, "Find"),
      search,
      el("label", { for: "sort" }, "Order"),
      sort,
    ),
  );
  const list = el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "All pipelines", hidden: true },
    el(
      "table",
      { class: "cards" },
      el("caption", { class: "spoken" }, "Pipelines with their state, lag and newest batch"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Pipeline"),
          el("th", { scope: "col" }, "State"),
          el("th", { scope: "col", class: "number" }, "Lag"),
          el("th", { scope: "col", class: "number" }, "Throughput"),
          el("th", { scope: "col", class: "number" }, "Retention in"),
          el("th", { scope: "col" }, "Newest batch"),
          el("th", { scope: "col" }, "Last error and remedy"),
        ),
      ),
      body,
    ),
  );
  document.getElementById("main").replaceChildren(tiles, list, empty);
  let rows = [];

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const shown = rows
      .filter((row) => !wanted || `${row.pipeline} ${words(row).join(" ")}`.toLowerCase().includes(wanted))
      .sort(SORTS[sort.value][1]);
    keyed(body, shown, (row) => row.pipeline, overviewRow);
    refreshAges(body);
    list.hidden = shown.length === 0;
    empty.hidden = shown.length > 0;
    empty.textContent = rows.length
      ? "No pipeline matches."
      : "There is no pipeline yet, or none that you may see. A pipeline appears here once Airflow has parsed its DAG, which pipeline_dag makes.";
    const groups = new Map();
    for (const word of rows.flatMap(words)) groups.set(word, (groups.get(word) ?? 0) + 1);
    const states = [...groups].sort(([a], [b]) => URGENCY.indexOf(a) - URGENCY.indexOf(b));
    fill(tiles, states, () =>
      states.map(([state, number]) =>
        el(
          "button",
          {
            class: "tile",
            type: "button",
            "data-focus": state,
            onclick: () => {
              search.value = search.value === state ? "" : state;
              draw();
            },
          },
          el("strong", {}, count(number)),
          stateBadge(state),
        ),
      ),
    );
  }

  live(EVERY, async () => {
    rows = (await pipelines()).pipelines;
    draw();
    // Kafka has not answered yet: ask again soon.
    return rows.some((row) => row.lag === null && !row.kafka_error) ? SOON : EVERY;
  });
}

/** The pipeline's name, with a link to its page; one of many tables has none, and links to the DAG of all. */
function nameOf(row) {
  if (row.pipeline !== row.dag_id) return airflowLink(`dags/${encodeURIComponent(row.dag_id)}`, row.pipeline);
  return el("a", { href: `?dag=${encodeURIComponent(row.dag_id)}`, "data-focus": "name" }, row.dag_id);
}

function overviewRow(row) {
  const batch = row.newest;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, nameOf(row)),
    el(
      "td",
      { "data-label": "State" },
      words(row).flatMap((word) => [stateBadge(word), " "]),
      row.overdue ? el("small", {}, overdueText(row)) : null,
    ),
    el(
      "td",
      { class: "number", "data-label": "Lag" },
      row.lag === null || row.lag === undefined
        ? "not known"
        : [count(row.lag), row.lag && row.lag_seconds !== null ? el("small", {}, ` ${duration(row.lag_seconds)}`) : null],
    ),
    el("td", { class: "number", "data-label": "Throughput" }, rate(row.records_per_second)),
    el(
      "td",
      { class: `number${row.retention_seconds < 86400 && row.retention_seconds !== null ? " alarm" : ""}`, "data-label": "Retention in" },
      duration(row.retention_seconds),
    ),
    el(
      "td",
      { "data-label": "Newest batch" },
      batch
        ? [
            `${batch.batch_id} `,
            el("small", {}, `${compact(batch.records)} records, `),
            el("small", {}, age(batch.committed_at ?? batch.planned_at)),
          ]
        : "none yet",
    ),
    el(
      "td",
      { class: "message", "data-label": "Last error and remedy" },
      row.error
        ? [
            el("strong", {}, row.error.error),
            row.error.failures > 1 ? ` (${plural(row.error.failures, "time")})` : "",
            ": ",
            row.error.message,
          ]
        : row.kafka_error
          ? row.kafka_error
          : el("span", { class: "quiet" }, "none"),
    ),
  );
}


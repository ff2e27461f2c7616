// One pipeline: its state, the strips of its partitions, charts, batches and rejects.

import * as asking from "./api.js";
import { TimeChart } from "./charts.js";
import { age, airflowLink, el, fill, foreignLink, keyed, refreshAges, runPath, say } from "./dom.js";
import { count, duration, forwardingText, moment, overdueText, plural, rate } from "./format.js";
import { openReplay } from "./replay.js";
import { kindBadge, OVERDUE, stateBadge, stateMeaning } from "./states.js";
import { CoverageStrip, LEGEND } from "./strip.js";

const EVERY = 4000; // milliseconds
const PARTITIONS = 12; // strips on one page
const LISTED = 12; // batches in the list, until older ones are asked for
const TASKS = { plan_batch: "plan", process_batch: "process", process_replay: "process", report_batch: "report" };

export function showPipeline(dag, address) {
  const api = asking.pipeline(dag);
  const run = address.get("run");
  const number = (name) => (/^\d+$/.test(address.get(name) ?? "") ? Number(address.get(name)) : null);
  const wanted = number("batch");
  let view = { first: number("first"), until: number("until"), skip: number("skip") ?? 0 };
  let state = null;
  let batches = [];
  let linked = null; // the batch that the address names, if it is older than all that are known
  let listed = LISTED;
  let isComplete = false;
  let scale = null;
  let chosen = null;
  let whole = null;

  document.title = `${dag} · exactbatch`;
  const badge = el("span");
  document.getElementById("top").append(
    el("nav", { "aria-label": "Breadcrumb" }, el("a", { href: "./" }, "Pipelines"), " / "),
    el("h1", {}, dag),
    badge,
    el("span", { class: "tools" }, airflowLink(`dags/${encodeURIComponent(dag)}`, "DAG"), run ? airflowLink(runPath(dag, run), "Run") : ""),
  );
  const facts = el("dl", { class: "facts" });
  const trouble = el("div");
  const strips = el("div", { class: "strips" });
  const tools = el("div", { class: "toolbar", role: "toolbar", "aria-label": "Scale of the strips" });
  const selected = el("div", { class: "selected" });
  const more = el("div", { class: "pages" });
  const gapNote = el("p", { class: "quiet" });
  const unread = el("p", { class: "quiet", hidden: true }, "No offset is stored yet: the first run decides where the pipeline begins in each partition.");
  const noBatch = el("p", { class: "quiet", hidden: true });
  const where = el("span", { class: "quiet" });
  const body = el("tbody");
  const olderButton = el("button", { type: "button", onclick: older }, "Older batches");
  const rejectList = el("div");
  const speed = new TimeChart("Throughput and duration of each batch", [["records/s", "/s", "batch"], ["plan to commit", "s", "reject"]]);
  const lag = new TimeChart("Lag at the end of each interval", [["records behind", "n", "replay"]]);
  const main = document.getElementById("main");
  const waiting = el("p", { class: "quiet" }, "Loading…");
  main.classList.add("waiting"); // laid out, because strips are as wide as the page, and not shown
  main.replaceChildren(
    waiting,
    facts,
    trouble,
    el(
      "section",
      { "aria-labelledby": "coverage" },
      el("h2", { id: "coverage" }, "Coverage"),
      el("p", { id: "strip-help", class: "spoken" },
        "Left and right arrow: from segment to segment. Shift and arrow: select. Enter: select the segment. Plus and minus: zoom. Zero: the whole log. Page up and page down: move."),
      unread,
      el("div", { class: "legend" }, LEGEND.map(([kind, word]) => el("span", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), word))),
      tools,
      selected,
      strips,
      more,
      gapNote,
    ),
    el("section", { class: "charts", "aria-label": "Over time" }, speed.node, lag.node),
    el(
      "section",
      { "aria-labelledby": "batches" },
      el("h2", { id: "batches" }, "Batches"),
      el(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of batches" },
        el(
          "table",
          { class: "cards" },
          el("thead", {}, el("tr", {},
            ["Batch", "Kind", "State"].map((name) => el("th", { scope: "col" }, name)),
            ["Records", "Rows", "Rejected", "Dropped"].map((name) => el("th", { scope: "col", class: "number" }, name)),
            ["Planned", "Seconds by stage", "Run", "Action"].map((name) => el("th", { scope: "col" }, name)))),
          body,
        ),
      ),
      noBatch,
      olderButton,
    ),
    el("section", { "aria-labelledby": "rejects" }, el("h2", { id: "rejects" }, "Rejects"), rejectList),
  );

  // The scale.

  const button = (label, text, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  tools.append(
    button("Zoom in", "+", () => zoom(0.5)),
    button("Zoom out", "−", () => zoom(2)),
    button("Earlier", "←", () => pan(-0.5)),
    button("Later", "→", () => pan(0.5)),
    el("button", { type: "button", onclick: () => zoom(Infinity) }, "Whole log"),
    el("button", { type: "button", onclick: () => zoomToEnd() }, "Newest"),
    where,
  );

  function go(first, until) {
    const size = Math.max(8, until - first);
    const begin = Math.max(0, Math.round(first));
    view = { ...view, first: begin, until: begin + Math.round(size) };
    scale = { first: view.first, until: view.until }; // further steps count from here, before the answer is in
    remember();
    loadStrips().catch(() => refresh());
  }

  function zoom(factor, at = null) {
    if (!scale) return;
    if (factor === Infinity) {
      view = { ...view, first: null, until: null };
      remember();
      loadStrips().catch(() => refresh());
      return;
    }
    const middle = at ?? (chosen ? (chosen.from + chosen.until) / 2 : (scale.first + scale.until) / 2);
    const size = (scale.until - scale.first) * factor;
    const part = at === null ? 0.5 : (at - scale.first) / (scale.until - scale.first);
    if (whole && size >= whole[1] - whole[0]) return zoom(Infinity);
    go(middle - size * part, middle + size * (1 - part));
  }

  function pan(part) {
    if (!scale) return;
    const by = (scale.until - scale.first) * part;
    go(Math.max(0, scale.first + by), Math.max(0, scale.first + by) + scale.until - scale.first);
  }

  function zoomToEnd() {
    const size = Math.max(20, ((whole ?? [scale.first, scale.until])[1] - (whole ?? [scale.first])[0]) / 20);
    const end = (whole ?? [0, scale.until])[1];
    go(end - size, end + size / 10);
  }

  function remember() {
    const values = new URLSearchParams({ dag });
    if (run) values.set("run", run);
    if (wanted !== null) values.set("batch", wanted);
    for (const name of ["first", "until"]) if (view[name] !== null) values.set(name, view[name]);
    if (view.skip) values.set("skip", view.skip);
    history.replaceState(null, "", `?${values}`);
  }

  // The strips.

  const drawn = new Map();
  const on = {
    zoom,
    pan,
    select(strip, selection) {
      for (const each of drawn.values()) if (each !== strip) each.clear();
      chosen = selection && { topic: strip.data.topic, partition: strip.data.partition, from: selection[0], until: selection[1] };
      showSelection();
    },
  };

  async function loadStrips() {
    const steps = Math.max(50, Math.min(900, Math.round(strips.clientWidth || 600)));
    const wanted = { ...view };
    const found = await api.strips({ ...wanted, steps, partitions: PARTITIONS });
    if (JSON.stringify(wanted) !== JSON.stringify(view)) return; // the scale has changed meanwhile
    scale = { first: found.first, until: found.until };
    unread.hidden = found.all > 0;
    for (const node of [unread.nextElementSibling, tools, selected, strips, gapNote]) node.hidden = found.all === 0;
    if (view.first === null && view.until === null) whole = [found.first, found.until];
    where.textContent = ` offsets ${count(scale.first)} to ${count(scale.until - 1)}`;
    const keys = new Set();
    for (const data of found.strips) {
      const key = `${data.topic_id} ${data.partition}`;
      keys.add(key);
      let strip = drawn.get(key);
      if (!strip) {
        strip = new CoverageStrip(on);
        drawn.set(key, strip);
        strips.append(strip.node);
      }
      strip.show(data, scale.first, scale.until);
    }
    for (const [key, strip] of drawn) if (!keys.has(key)) {
      strip.node.remove();
      drawn.delete(key);
    }
    fill(more, [found.skip, found.all], () => found.all <= PARTITIONS ? [] : [
      el("button", { type: "button", disabled: found.skip === 0, "data-focus": "before", onclick: () => turn(-PARTITIONS) }, "Previous partitions"),
      el("span", {}, `${count(found.skip + 1)} to ${count(Math.min(found.all, found.skip + PARTITIONS))} of ${plural(found.all, "partition")}`),
      el("button", { type: "button", disabled: found.skip + PARTITIONS >= found.all, "data-focus": "next", onclick: () => turn(PARTITIONS) }, "Next partitions"),
    ]);
    if (found.all === 0) return;
    if (found.strips.every((each) => each.is_exact)) gapNote.textContent = "All rows of the ledger in this window were checked.";
    else if (!gapNote.dataset.checked) checkGaps();
  }

  function turn(by) {
    view = { ...view, skip: Math.max(0, view.skip + by) };
    delete gapNote.dataset.checked;
    chosen = null;
    showSelection();
    remember();
    loadStrips().catch(() => refresh());
  }

  /** Steps stand for many rows here: whether a narrow gap hides between them is looked up once, some rows at a time. */
  async function checkGaps() {
    const search = `${Date.now()} ${view.skip}`;
    gapNote.dataset.checked = search;
    const gaps = [];
    let next = { skip: view.skip, partitions: PARTITIONS };
    let rows = 0;
    try {
      while (next && gaps.length < 10) {
        gapNote.textContent = `Looking for gaps that are narrower than what is drawn: ${plural(rows, "row")} of the ledger so far…`;
        const found = await api.gaps(next);
        if (gapNote.dataset.checked !== search || !gapNote.isConnected) return;
        gaps.push(...found.gaps);
        rows += found.rows;
        next = found.next;
      }
      gapNote.replaceChildren(
        gaps.length
          ? el("strong", {}, `There are gaps: ${gaps.slice(0, 10).map(([topic, partition, from, to]) => `${topic}[${partition}] ${count(from)} to ${count(to - 1)}`).join("; ")}.`)
          : "No gap anywhere in these partitions, however narrow.",
      );
    } catch {
      if (gapNote.dataset.checked === search) gapNote.textContent = `Gaps that are narrower than what is drawn were looked for in ${plural(rows, "row")} only: the ledger does not answer. Load the page again, or run exactbatch audit.`;
    }
  }

  function showSelection() {
    fill(selected, [chosen, state?.may], () => {
      if (!chosen) return [el("span", { class: "quiet" }, "Drag over a strip, or click a segment, to select offsets.")];
      const { topic, partition, from, until } = chosen;
      const upTo = drawnNext(topic, partition);
      const replayable = Math.min(until, upTo ?? until);
      return [
        el("strong", {}, `${topic}[${partition}] ${count(from)} to ${count(until - 1)}`),
        el("button", { type: "button", "data-focus": "zoom", onclick: () => go(from - (until - from) * 0.1, until + (until - from) * 0.1) }, "Zoom to it"),
        state?.may.trigger && from < replayable
          ? el("button", {
              type: "button", class: "primary", "data-focus": "replay",
              onclick: () => openReplay(api, state,
                { ranges: [{ topic, partition, from_offset: from, until_offset: replayable }] },
                `${topic}[${partition}] ${count(from)} to ${count(replayable - 1)}`),
            }, "Replay…")
          : "",
        el("button", { type: "button", "data-focus": "clear", onclick: () => { for (const each of drawn.values()) each.clear(); chosen = null; showSelection(); } }, "Clear"),
      ];
    });
  }

  const drawnNext = (topic, partition) =>
    [...drawn.values()].find((each) => each.data.topic === topic && each.data.partition === partition)?.data.next_offset;

  // State, charts and batches.

  function showState() {
    fill(badge, [state.state, state.overdue], () => [stateBadge(state.state), ...(state.overdue ? [" ", stateBadge(OVERDUE)] : [])]);
    const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));
    const isOld = state.kafka_at !== null && Date.parse(state.now) - Date.parse(state.kafka_at) > 15000;
    fill(facts, { ...state, now: null, kafka_at: isOld ? state.kafka_at : null }, () => [
      fact("State", stateMeaning(state.state)),
      state.freshness_seconds === null ? null : fact("Freshness", `${duration(state.freshness_seconds)} `,
        state.overdue ? el("strong", { class: "alarm" }, `overdue: ${overdueText(state)}`) : el("small", {}, "no record is known to have waited for longer")),
      fact("Lag", state.lag === null ? "not known" : plural(state.lag, "record"), state.lag && state.lag_seconds !== null ? `, behind for ${duration(state.lag_seconds)}` : "",
        state.held_back ? el("strong", {}, `, ${count(state.held_back)} held back by an open transaction`) : "",
        state.lost ? el("strong", {}, `, ${count(state.lost)} lost to retention`) : "",
        isOld ? el("small", {}, ` as of ${moment(state.kafka_at)}`) : ""),
      fact("Throughput, last hour", rate(state.records_per_second)),
      fact("Retention reaches the stored offset in", duration(state.retention_seconds)),
      fact("Target", `${[state.target, ...state.other_targets].join(", ")} (${state.sink}${state.lineage === "batch" ? ", rows name their batch" : ""})`),
      fact("Topics", state.topics.join(", ") || "none yet"),
      state.forwarding === null ? null : fact("Results", forwardingText(state.forwarding)),
    ]);
    fill(trouble, [state.error, state.kafka_error], () => [
      state.error ? errorNote(state.error) : null,
      state.kafka_error ? el("div", { class: "note warn" }, el("strong", {}, "Kafka: "), state.kafka_error, " What the ledger knows is shown all the same.") : null,
    ]);
    refreshAges(trouble);
  }

  /** Where Airflow shows the task that processes a batch. */
  const taskPath = ({ run_id: id, kind }) => `${runPath(dag, id)}/tasks/${kind === "advance" ? "process_batch" : "process_replay"}`;

  function errorNote(error) {
    if (!error.batch_id) return el("div", { class: "note bad" }, el("strong", {}, `${error.error}: `), error.message);
    return el("div", { class: error.retryable ? "note warn" : "note bad" },
      el("strong", {}, `${error.error}, batch ${error.batch_id}: `), error.message,
      el("p", {}, `Failed ${plural(error.failures, "time")}, last `, age(error.failed_at), ". ",
        error.retryable ? "A retry may succeed. " : "A retry does not help. ",
        error.hint ? `${error.hint} ` : "",
        error.run_id ? airflowLink(taskPath(error), "Task and log") : ""));
  }

  function showBatches() {
    const shown = batches.slice(0, listed);
    const named = batches.find((batch) => batch.batch_id === wanted) ?? linked;
    keyed(body, named && !shown.includes(named) ? [named, ...shown] : shown, (batch) => batch.batch_id, batchRow);
    noBatch.hidden = batches.length > 0;
    noBatch.textContent = state.is_paused
      ? "There is no batch yet, and the DAG is paused. Unpause it in Airflow, or trigger a run after that."
      : "There is no batch yet. The next run of the DAG plans the first one.";
    noBatch.previousElementSibling.hidden = batches.length === 0;
    olderButton.hidden = batches.length <= listed && (isComplete || batches.length < 50);
    // A replay may commit later than advances that were planned after it.
    const done = batches.filter((batch) => batch.committed_at).sort((a, b) => Date.parse(a.committed_at) - Date.parse(b.committed_at));
    speed.show([
      done.map((batch) => Date.parse(batch.committed_at) / 1000),
      done.map((batch) => batch.records / Math.max(0.001, batch.seconds)),
      done.map((batch) => batch.seconds),
    ]);
  }

  function batchRow(batch) {
    const cell = (name, className, ...content) => el("td", { class: className, "data-label": name }, ...content);
    // What the engine measured; batches of older versions have only the tasks of Airflow.
    const tasks = batch.tasks.filter(([task]) => TASKS[task]).map(([task, , tries, seconds]) => [TASKS[task], seconds, tries]);
    const stages = batch.committed_at && batch.stages.length
      ? [...batch.stages.map(([stage, seconds]) => [stage, seconds, tasks.find(([task]) => task === (stage === "start" ? "process" : stage))?.[2] ?? 1]),
        ...tasks.filter(([task]) => task === "report")]
      : tasks;
    return el(
      "tr",
      { class: wanted === null ? (run && batch.run_id === run ? "marked" : null) : (batch.batch_id === wanted ? "marked" : null) },
      el("th", { scope: "row" }, `${batch.batch_id}`),
      cell("Kind", null, kindBadge(batch.kind)),
      cell("State", null, stateBadge(batch.error && batch.status === "planned" ? (batch.error.retryable ? "retrying" : "failing") : batch.status)),
      cell("Records", "number", count(batch.records ?? batch.offsets)),
      cell("Rows", "number", count(batch.rows)),
      cell("Rejected", `number${batch.rejected ? " alarm" : ""}`, count(batch.rejected)),
      cell("Dropped", "number", count(batch.dropped === null ? null : batch.dropped + batch.tombstones)),
      cell("Planned", null, moment(batch.planned_at)),
      cell("Seconds by stage", "wide", duration(batch.seconds), stages.length
        ? el("small", {}, ` ${stages.map(([stage, seconds, tries]) => `${stage} ${duration(seconds)}${tries > 1 ? ` (try ${tries})` : ""}`).join(" · ")}`)
        : ""),
      cell("Run", "run", batch.run_id
        ? [airflowLink(runPath(dag, batch.run_id), batch.run_id), " ", airflowLink(taskPath(batch), "log")]
        : batch.origin,
        batch.application_url ? [" ", foreignLink(batch.application_url, "Spark")] : ""),
      cell("Action", null, state?.may.trigger && batch.status === "committed"
        ? el("button", { type: "button", "data-focus": "replay", "aria-label": `Replay batch ${batch.batch_id}`,
            onclick: () => openReplay(api, state, { batch_ids: [batch.batch_id] }, `batch ${batch.batch_id}`) }, "Replay…")
        : ""),
    );
  }

  async function older() {
    const before = Math.min(listed, batches.length);
    listed += 25;
    if (batches.length < listed) {
      const last = batches.at(-1)?.batch_id;
      const found = (await api.batches({ before: last })).batches;
      if (batches.at(-1)?.batch_id !== last) return; // the list has changed meanwhile
      isComplete = found.length < 50;
      batches = [...batches, ...found];
    }
    showBatches();
    const added = Math.min(listed, batches.length) - before;
    say(plural(added, "older batch", "older batches"));
  }

  // Rejects.

  async function loadRejects() {
    if (!state.may.read_logs) {
      rejectList.replaceChildren(el("p", { class: "quiet" }, "You need the right to read the task logs of this DAG to see reasons."));
      return;
    }
    const { groups } = await api.rejects();
    fill(rejectList, groups, () => groups.length === 0
      ? el("p", { class: "quiet" }, "No record is rejected.")
      : [
          ...groups.map(rejectGroup),
          groups[0].sampled >= 10000 ? el("p", { class: "quiet" }, "Counted among the first 10,000 rejects.") : null,
        ]);
  }

  function rejectGroup(group) {
    const list = el("div");
    let after = {};
    const load = async () => {
      const { rejects } = await api.rejectsOf({ kind: group.kind, ...after });
      list.append(...rejects.map(rejectRow));
      const last = rejects.at(-1);
      if (last) after = { topic_id: last.topic_id, partition: last.partition, offset: last.offset };
      next.hidden = rejects.length < 100;
    };
    const next = el("button", { type: "button", hidden: true, onclick: load }, "Further records");
    const replay = async () => {
      const { rejects } = await api.rejectsOf({ kind: group.kind });
      const ranges = [];
      for (const { topic, partition, offset } of rejects) {
        const last = ranges.at(-1);
        if (last && last.topic === topic && last.partition === partition && last.until_offset === offset) last.until_offset += 1;
        else ranges.push({ topic, partition, from_offset: offset, until_offset: offset + 1 });
      }
      openReplay(api, state, { ranges }, `${plural(rejects.length, "rejected record")}${rejects.length < group.records ? `, the first of ${count(group.records)}` : ""}`);
    };
    const details = el(
      "details",
      { ontoggle: () => details.open && !list.children.length && load() },
      el("summary", {}, el("strong", {}, plural(group.records, "record")), ` ${group.kind} `, el("small", {}, `for example: ${group.example}`)),
      state.may.trigger ? el("button", { type: "button", onclick: replay }, "Replay these…") : "",
      list,
      next,
    );
    return details;
  }

  function rejectRow(reject) {
    const content = el("div", { class: "record" });
    const show = async () => {
      try {
        const record = await api.record({ topic_id: reject.topic_id, partition: reject.partition, offset: reject.offset });
        content.replaceChildren(el("dl", {}, ["key", "value"].flatMap((name) => [
          el("dt", {}, name),
          el("dd", {}, record[name] === null ? "null" : el("pre", {}, record[name].text ?? `base64: ${record[name].base64}`),
            record[name]?.is_cut ? el("small", {}, `the first part of ${plural(record[name].bytes, "byte")}`) : ""),
        ]), el("dt", {}, "headers"), el("dd", {}, el("pre", {}, headersText(record.headers)))));
      } catch (error) {
        content.replaceChildren(el("p", { class: "refusal" }, error.message));
      }
    };
    return el(
      "div",
      { class: "reject-row" },
      el("code", {}, `${reject.topic}[${reject.partition}] ${count(reject.offset)}`),
      ` ${reject.reason} `,
      el("small", {}, `batch ${reject.batch_id}, ${reject.bytes === null ? "null" : plural(reject.bytes, "byte")} `),
      state.may.see_records ? el("button", { type: "button", "aria-label": `Show the record at ${reject.offset}`, onclick: show }, "Record") : "",
      el("button", { type: "button", "aria-label": `Show offset ${reject.offset} on the strip`, onclick: () => { go(reject.offset - 10, reject.offset + 11); strips.scrollIntoView(); } }, "On the strip"),
      content,
    );
  }

  // Everything, again and again.

  let rounds = 0;
  let missing = false;
  let lastCommitted = null;

  /** The tab is a part of every DAG in Airflow; of those that are no pipeline, it says so. */
  function explain(error) {
    if (error.status !== 404) {
      waiting.textContent = "Nothing can be shown yet. The page tries again by itself.";
      throw error;
    }
    missing = true;
    main.classList.remove("waiting");
    main.replaceChildren(el("p", {}, `${dag}: ${error.message}.`), el("p", {}, el("a", { href: "./" }, "All pipelines")));
    return [null, null];
  }

  const refresh = asking.live(EVERY, async () => {
    if (missing) return;
    const [found, newest] = await Promise.all([api.state(), api.batches({ limit: 50 }), loadStrips()]).catch(explain);
    if (missing) return;
    state = found;
    main.classList.remove("waiting");
    waiting.remove();
    const newestIds = new Set(newest.batches.map((batch) => batch.batch_id));
    // Where more were planned in a hidden tab than one answer has, those between are not known.
    if (!batches.some((batch) => newestIds.has(batch.batch_id))) [batches, isComplete] = [[], false];
    batches = [...newest.batches, ...batches.filter((batch) => !newestIds.has(batch.batch_id))].sort((a, b) => b.batch_id - a.batch_id);
    if (wanted !== null && rounds % 5 === 0 && !batches.some((batch) => batch.batch_id === wanted)) {
      linked = (await api.batches({ before: wanted + 1, limit: 1 })).batches.find((batch) => batch.batch_id === wanted) ?? null;
    }
    showState();
    showBatches();
    showSelection();
    // A batch has committed: it may have added rejects, or a replay has retracted some.
    const committed = batches.filter((batch) => batch.committed_at).map((batch) => batch.batch_id).join();
    if (rounds % 5 === 0 || committed !== lastCommitted) await loadRejects();
    lastCommitted = committed;
    // The first answer has one point: Kafka is asked for the others meanwhile.
    if (rounds % 5 < 2) lag.show((await api.lag()).series);
    rounds += 1;
  });
}

function headersText(headers) {
  try {
    return JSON.parse(headers)
      .map(([name, value]) => `${name}: ${value === null ? "null" : decoded(value)}`)
      .join("\n") || "none";
  } catch {
    return headers;
  }
}

function decoded(value) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(atob(value), (char) => char.charCodeAt(0)));
  } catch {
    return `base64: ${value}`;
  }
}

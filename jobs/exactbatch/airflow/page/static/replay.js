// Replay: choose, preview what is retracted, confirm by the number of rows, and let Airflow trigger the DAG.

import { airflowLink, el, runPath, say } from "./dom.js";
import { count, plural } from "./format.js";

/** Open the dialog for a replay. `state` is the pipeline's; `conf` are the parameters of the DAG: ranges or batch_ids. */
export function openReplay(api, { dag_id: dag, is_paused: isPaused }, conf, title) {
  const content = el("div", {}, el("p", { class: "quiet" }, "Looking up what would be replaced…"));
  const dialog = el(
    "dialog",
    { "aria-labelledby": "replay-title", onclose: () => dialog.remove() },
    el("h2", { id: "replay-title" }, `Replay ${title}`),
    content,
  );
  document.body.append(dialog);
  dialog.showModal();
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");

  async function look() {
    content.replaceChildren(el("p", { class: "quiet" }, "Looking up what would be replaced…"));
    try {
      ask(await api.preview(conf));
    } catch (error) {
      const offersRest = /available_only/.test(error.message) && !conf.available_only;
      content.replaceChildren(
        el("p", { class: "refusal", role: "alert" }, error.title ? el("strong", {}, `${error.title}: `) : "", error.message),
        el(
          "div",
          { class: "actions" },
          close,
          offersRest
            ? el("button", { type: "button", onclick: () => { conf = { ...conf, available_only: true }; look(); } }, "Preview what the log still holds")
            : "",
        ),
      );
      close.focus();
    }
  }

  function ask(preview) {
    const rows = preview.rows;
    const others = preview.other_targets.join(", ");
    const replaced = `${count(rows)} ${preview.is_derived ? "rows of its lineage table" : "rows"} of ${preview.target}`;
    const what = !preview.retracts
      ? `Apply ${plural(preview.offsets, "offset")} to ${preview.target} again`
      : `Replace ${replaced}${others && `, and the rows of these offsets in ${others}`}`;
    const check = el("input", { type: "checkbox", id: "confirm", onchange: () => (go.disabled = !check.checked) });
    const note = el("input", { type: "text", id: "note", maxlength: "1000" });
    const go = el("button", { type: "button", class: "primary", disabled: true, onclick: () => start(go, note.value) }, "Replay");
    content.replaceChildren(
      el(
        "p",
        {},
        "One transaction retracts ",
        el("strong", {}, replaced),
        others ? [", the rows of these offsets in ", el("strong", {}, others), ","] : "",
        " and ",
        el("strong", {}, plural(preview.rejects, "reject")),
        ", and writes the new results of ",
        el("strong", {}, plural(preview.offsets, "offset")),
        ". The stored offsets do not move, and scheduled runs go on.",
      ),
      ranges(preview),
      preview.retracts
        ? ""
        : el("p", { class: "warning" }, `${preview.target} keeps no history: a replay applies its records again and retracts no rows. A row that its records no longer produce stays.`),
      preview.widened.length
        ? el("p", { class: "warning" }, "Rows of this target name only their batch, so whole batches are replayed: ",
            preview.widened.map((each) => `${place(each)} of batch ${each.batch_id}`).join("; "), ".")
        : "",
      preview.removed.length
        ? el("p", { class: "warning" }, "Retention has removed a part, whose results stay: ", preview.removed.map(place).join("; "), ".")
        : "",
      preview.compacted.length
        ? el("p", { class: "warning" }, "Below the replay horizon, so the results stay: ", preview.compacted.map(place).join("; "), ".")
        : "",
      preview.missing_index
        ? el("details", {}, el("summary", {}, "The target has no index for replays, so this may be slow"), el("pre", {}, preview.missing_index))
        : "",
      isPaused ? el("p", { class: "warning" }, "The DAG is paused: Airflow starts the run once you unpause it.") : "",
      el("p", {}, el("label", { for: "note" }, "Note for the run (why)"), note),
      el(
        "p",
        { class: "confirm" },
        check,
        el("label", { for: "confirm" }, what),
      ),
      el("div", { class: "actions" }, close, go),
    );
    check.focus();
  }

  async function start(button, note) {
    button.disabled = true;
    try {
      const run = await api.trigger(conf, note || null);
      say("Airflow has started the run.");
      const done = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
      content.replaceChildren(
        el("p", {}, "Airflow has created the run ", airflowLink(runPath(dag, run.dag_run_id), run.dag_run_id), isPaused
          ? ". It waits until you unpause the DAG."
          : ". It plans the replay first; the strip shows it then as in flight."),
        el("div", { class: "actions" }, done),
      );
      done.focus();
    } catch (error) {
      content.append(el("p", { class: "refusal", role: "alert" }, `Airflow did not start the run: ${error.message}`));
      button.disabled = false;
    }
  }

  look();
}

const place = (each) => `${each.topic}[${each.partition}] ${count(each.from_offset)} to ${count(each.until_offset - 1)}`;

function ranges(preview) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "What is replaced" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, el("th", {}, "Offsets"), el("th", { class: "number" }, "Rows retracted"), el("th", { class: "number" }, "Rejects"), el("th", {}, "Results of"))),
      el("tbody", {}, preview.ranges.map((each) => el(
        "tr",
        {},
        el("td", {}, place(each)),
        el("td", { class: "number" }, each.rows === null ? "counted in total" : count(each.rows)),
        el("td", { class: "number" }, count(each.rejects)),
        el("td", {}, each.all_batches ? `${each.batches.join(", ")}${each.all_batches > each.batches.length ? ` and ${each.all_batches - each.batches.length} more` : ""}` : "none"),
      ))),
    ),
    preview.all_ranges > preview.ranges.length ? el("p", { class: "quiet" }, `${count(preview.all_ranges)} ranges in total`) : "",
  );
}

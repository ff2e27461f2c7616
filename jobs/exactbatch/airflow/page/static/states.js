// The states of pipelines and batches: a word, a sign and a tone each. No state is told by its colour alone.

import { el } from "./dom.js";

const STATES = {
  failing: ["bad", "✕", "It is failing. A retry does not help; somebody has to act."],
  "losing data": ["bad", "✕", "Retention has removed offsets that were not processed."],
  "cannot plan": ["bad", "✕", "The log contradicts the stored offsets, so no run can plan a batch; somebody has to act."],
  overdue: ["bad", "◷", "A record has waited for longer than the pipeline's freshness allows."],
  "not registered": ["bad", "✕", "The ledger does not know it: run exactbatch register."],
  retrying: ["warn", "↻", "It has failed; a retry may succeed."],
  "held back": ["warn", "‖", "An open transaction of a producer holds all new records back."],
  unknown: ["warn", "?", "Kafka or the ledger does not answer."],
  behind: ["calm", "›", "There are records that the next run will process."],
  processing: ["busy", "▸", "A batch is in flight."],
  paused: ["calm", "‖", "The DAG is paused in Airflow."],
  "no topic yet": ["calm", "–", "No topic has joined by the pipeline's pattern: each run looks for topics that match."],
  "up to date": ["good", "✓", "Every record of the log is processed."],
  committed: ["good", "✓", "Its results are in the target."],
  planned: ["busy", "▸", "It is planned and has not committed."],
  superseded: ["calm", "–", "A later plan took its place; it can never commit."],
};

export const OVERDUE = "overdue"; // beside a state, which says what else is known
export const URGENCY = Object.keys(STATES);

export function stateBadge(state) {
  const [tone, sign, meaning] = STATES[state] ?? ["calm", "", ""];
  return el("span", { class: `badge ${tone}`, title: meaning }, el("span", { "aria-hidden": "true" }, sign), ` ${state}`);
}

export function kindBadge(kind) {
  const name = kind === "advance" ? "batch" : kind;
  return el("span", { class: "kind" }, el("span", { class: `swatch ${name}`, "aria-hidden": "true" }), kind);
}

export const stateMeaning = (state) => STATES[state]?.[2] ?? "";

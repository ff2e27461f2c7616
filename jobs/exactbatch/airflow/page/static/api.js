// Ask the page's own routes, and Airflow's API to trigger a run. The browser sends the session's cookie by itself; where it
// has none, in Airflow 3.0, Airflow's pages keep a token in the storage of the browser.

export class Refused extends Error {
  constructor(status, message, name) {
    super(message);
    this.status = status;
    this.title = name;
  }
}

const TRIES = 4;
let session = {};

/** Ask for JSON. The page's own routes write nothing: while all their turns are taken (503), ask again, not all at once. */
async function ask(url, options = {}, tries = url.startsWith("data/") ? TRIES : 1) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options, headers: { ...options.headers, ...session } });
  } catch {
    throw new Refused(0, "Airflow does not answer. The page tries again by itself.");
  }
  if (answer.status === 503 && tries > 1) {
    const seconds = Number(answer.headers.get("Retry-After")) || 2;
    await new Promise((resolve) => setTimeout(resolve, (1 + Math.random()) * seconds * 1000));
    return ask(url, options, tries - 1);
  }
  const token = globalThis.localStorage?.getItem("token");
  if (answer.status === 401 && token && session.Authorization !== `Bearer ${token}`) {
    session = { Authorization: `Bearer ${token}` };
    return ask(url, options, tries);
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok) return body;
  if (answer.status === 401) throw new Refused(401, "Your session has ended. Sign in to Airflow again.");
  let message = body?.message ?? body?.detail ?? `Airflow answered with the status ${answer.status}.`;
  if (typeof message !== "string") message = JSON.stringify(message);
  throw new Refused(answer.status, message, body?.error);
}

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

const json = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json", "X-Exactbatch": "1" },
  body: JSON.stringify(body),
});

export const pipelines = () => ask("data/pipelines");

export function pipeline(dag) {
  const base = `data/pipelines/${encodeURIComponent(dag)}`;
  return {
    state: () => ask(base),
    strips: (values) => ask(`${base}/strips${query(values)}`),
    gaps: (values) => ask(`${base}/gaps${query(values)}`),
    batches: (values = {}) => ask(`${base}/batches${query(values)}`),
    lag: () => ask(`${base}/lag`),
    rejects: () => ask(`${base}/rejects`),
    rejectsOf: (values) => ask(`${base}/rejects/list${query(values)}`),
    record: (values) => ask(`${base}/rejects/record${query(values)}`),
    preview: (conf) => ask(`${base}/preview`, json(conf)),
    trigger: (conf, note) =>
      ask(`../api/v2/dags/${encodeURIComponent(dag)}/dagRuns`, json({ logical_date: null, conf, note })),
  };
}

/** Call again and again while the page is visible; a failure is shown, and the next call repairs it. The call may return
    after how many milliseconds it is to be called next. */
export function live(every, call) {
  const banner = document.getElementById("banner");
  let timer = null;
  let isRunning = false;
  const run = async () => {
    clearTimeout(timer);
    if (isRunning) return;
    isRunning = true;
    let next = every;
    try {
      next = (await call()) ?? every;
      banner.hidden = true;
    } catch (error) {
      if (!(error instanceof Refused)) console.error(error);
      banner.textContent = error.message;
      banner.hidden = false;
    }
    isRunning = false;
    if (!document.hidden) timer = setTimeout(run, next);
  };
  document.addEventListener("visibilitychange", () => !document.hidden && run());
  run();
  return run;
}

// A coverage strip: the offsets of one partition as a band, with what the ledger has for each of them. It is drawn on a
// canvas, and operated like a slider: the cursor goes from segment to segment, and its text is read aloud.

import { el } from "./dom.js";
import { count, plural } from "./format.js";

const HEIGHT = 58;
const BAND = { top: 14, height: 26 };
const REJECTS = { top: 2, height: 10 };
const FLIGHT = { top: 44, height: 9 };

const WORDS = {
  batch: "batch",
  replay: "replay",
  backfill: "backfill",
  loss: "lost: retention removed these offsets before they were processed",
  gap: "gap: nothing accounts for these offsets",
  pruned: "folded: exactbatch prune has merged old batches",
  removed: "removed from the log by retention",
  before: "before the beginning of the pipeline",
  waiting: "not processed yet",
  outside: "nothing: outside of the log",
};

const wordsOf = (segment) => {
  const { kind, batch, last, merged } = segment;
  if (batch === null) return WORDS[kind];
  return merged ? `${WORDS[kind]}es from ${batch} to ${last}`.replace("replayes", "replays").replace("backfilles", "backfills") : `${WORDS[kind]} ${batch}`;
};

/** The segments of a strip from one end of the scale to the other, without holes. */
function complete(data, first, until) {
  const segments = data.segments.map(([from, to, kind, batch, last, merged]) => ({
    from: Math.max(first, from), to: Math.min(until, to), kind, batch, last, merged: Boolean(merged),
  }));
  const whole = [];
  let at = first;
  const idle = (to) => {
    const end = data.high_watermark ?? data.next_offset;
    const limits = [[data.first_offset, "before"], [data.earliest ?? 0, "removed"], [end, "waiting"], [to, "outside"]];
    for (const [last, kind] of limits) {
      const limit = Math.min(to, last);
      if (at < limit) {
        whole.push({ from: at, to: limit, kind, batch: null, last: null, merged: false });
        at = limit;
      }
    }
  };
  for (const segment of segments) {
    if (segment.from >= segment.to) continue;
    idle(segment.from);
    whole.push(segment);
    at = segment.to;
  }
  idle(until);
  return whole;
}

export class CoverageStrip {
  /** `on` has the functions select(strip, from, to), zoom(factor, offset), pan(part). */
  constructor(on) {
    this.on = on;
    this.canvas = el("canvas", { height: HEIGHT, "aria-hidden": "true" });
    this.slider = el(
      "div",
      {
        class: "strip", role: "slider", tabindex: "0", "aria-orientation": "horizontal", "aria-describedby": "strip-help",
        onkeydown: (event) => this.key(event), onfocus: () => this.draw(), onblur: () => this.draw(),
        onpointerdown: (event) => this.press(event), onpointermove: (event) => this.move(event),
        onpointerup: (event) => this.release(event), onpointercancel: () => (this.pressed = null),
        onpointerleave: () => this.hover(null), ondblclick: (event) => this.on.zoom(0.25, this.offsetAt(event)),
        onwheel: (event) => this.wheel(event),
      },
      this.canvas,
    );
    this.label = el("div", { class: "strip-name" });
    this.under = el("output", { class: "under" });
    this.table = el("details", { class: "strip-table", ontoggle: () => this.drawTable() }, el("summary", {}, "As a table"), el("div"));
    this.node = el("section", { class: "partition" }, this.label, this.slider, this.under, this.table);
    this.selection = null;
    this.cursor = null;
    this.anchor = null;
    new ResizeObserver(() => this.draw()).observe(this.slider);
    addEventListener("themechange", () => this.draw());
  }

  show(data, first, until) {
    this.data = data;
    this.first = first;
    this.until = until;
    this.segments = complete(data, first, until);
    this.name = `${data.topic}[${data.partition}]`;
    this.label.replaceChildren(
      el("h3", {}, this.name),
      el("span", { class: "quiet" }, data.high_watermark === null
        ? `stored offset ${count(data.next_offset)}`
        : `stored ${count(data.next_offset)} of ${count(data.high_watermark)}, lag ${count(Math.max(0, data.high_watermark - data.next_offset))}`),
    );
    this.slider.setAttribute("aria-label", `Coverage of ${this.name}`);
    this.slider.setAttribute("aria-valuemin", first);
    this.slider.setAttribute("aria-valuemax", until - 1);
    if (this.cursor === null || this.cursor < first || this.cursor >= until) this.cursor = first;
    this.tell();
    this.draw();
    this.drawTable();
  }

  get width() { return this.slider.clientWidth || 600; }
  x(offset) { return ((offset - this.first) / (this.until - this.first)) * this.width; }
  offsetAt(event) {
    const box = this.slider.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return Math.min(this.until - 1, Math.floor(this.first + part * (this.until - this.first)));
  }

  segmentAt(offset) { return this.segments.find((each) => each.from <= offset && offset < each.to); }

  /** What there is at an offset, in words: the segment, and everything that is drawn over it. */
  words(offset) {
    const segment = this.segmentAt(offset);
    if (!segment) return "";
    const parts = [`offsets ${count(segment.from)} to ${count(segment.to - 1)}: ${wordsOf(segment)}`];
    const step = Math.max(1, (this.until - this.first) / this.width) * 2;
    const near = (from, to) => from <= offset + step && offset - step < to;
    for (const [from, to, kind, batch] of this.data.exceptions) {
      if (near(from, to)) parts.push(`${batch === null ? WORDS[kind] : `${WORDS[kind]} ${batch}`}, ${count(from)} to ${count(to - 1)}`);
    }
    for (const [from, to, kind, batch] of this.data.in_flight) {
      if (from <= offset && offset < to) parts.push(`in flight: ${WORDS[kind]} ${batch}, ${count(from)} to ${count(to - 1)}`);
    }
    let rejects = 0;
    let isMore = false;
    for (const [from, to, number] of this.data.rejects) {
      if (from <= offset && offset < to) {
        rejects += number;
        isMore ||= number >= 100;
      }
    }
    if (rejects) parts.push(isMore ? `${rejects} rejects or more` : plural(rejects, "reject"));
    if (this.data.horizon !== null && offset < this.data.horizon) parts.push("below the replay horizon: cannot be replayed");
    if (this.data.earliest !== null && offset < this.data.earliest) parts.push("no longer in the log");
    return parts.join(" · ");
  }

  tell() {
    this.slider.setAttribute("aria-valuenow", this.cursor);
    this.slider.setAttribute("aria-valuetext", this.words(this.cursor));
    const [from, to] = this.selection ?? [];
    const text = this.words(this.hovered ?? this.cursor);
    this.under.replaceChildren(
      el("span", {}, this.hovered !== null && this.hovered !== undefined ? `${count(this.hovered)}: ${text}` : document.activeElement === this.slider ? text : ""),
      from === undefined ? "" : el("strong", {}, ` selected ${count(from)} to ${count(to - 1)} (${plural(to - from, "offset")})`),
    );
  }

  hover(offset) { this.hovered = offset; this.tell(); }

  choose(from, to) {
    this.selection = from === null ? null : [from, to];
    this.tell();
    this.draw();
    this.on.select(this, this.selection);
  }

  clear() { this.selection = null; this.tell(); this.draw(); }

  press(event) {
    if (event.button !== 0) return;
    this.pressed = { offset: this.offsetAt(event), x: event.clientX };
    this.slider.setPointerCapture(event.pointerId);
  }

  move(event) {
    const offset = this.offsetAt(event);
    if (this.pressed && Math.abs(event.clientX - this.pressed.x) > 3) {
      const [from, to] = [Math.min(this.pressed.offset, offset), Math.max(this.pressed.offset, offset) + 1];
      this.selection = [from, to];
      this.draw();
    }
    this.hover(offset);
  }

  release(event) {
    if (!this.pressed) return;
    const offset = this.offsetAt(event);
    const isClick = Math.abs(event.clientX - this.pressed.x) <= 3;
    this.pressed = null;
    this.cursor = offset;
    if (!isClick) this.choose(...this.selection);
    else {
      const segment = this.segmentAt(offset);
      const over = this.data.exceptions.find(([from, to]) => from <= offset && offset < to);
      if (over) this.choose(Math.max(this.first, over[0]), Math.min(this.until, over[1]));
      else if (segment) this.choose(segment.from, segment.to);
    }
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.on.zoom(event.deltaY < 0 ? 0.7 : 1.4, this.offsetAt(event));
  }

  key(event) {
    const stops = this.stops();
    const moves = {
      ArrowRight: () => stops.find((stop) => stop > this.cursor) ?? this.until - 1,
      ArrowLeft: () => stops.findLast((stop) => stop < this.cursor) ?? this.first,
      Home: () => this.first,
      End: () => this.until - 1,
    };
    const actions = {
      "+": () => this.on.zoom(0.5, this.cursor),
      "=": () => this.on.zoom(0.5, this.cursor),
      "-": () => this.on.zoom(2, this.cursor),
      0: () => this.on.zoom(Infinity, this.cursor),
      PageUp: () => this.on.pan(-0.5),
      PageDown: () => this.on.pan(0.5),
      Escape: () => { this.anchor = null; this.choose(null); },
      Enter: () => this.chooseAtCursor(),
      " ": () => this.chooseAtCursor(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) {
      const before = this.cursor;
      this.cursor = moves[event.key]();
      if (event.shiftKey) {
        this.anchor ??= before;
        const [from, to] = [Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor)];
        this.choose(from, Math.max(to, from + 1));
      } else this.anchor = null;
      this.tell();
      this.draw();
    } else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }

  chooseAtCursor() {
    const over = this.data.exceptions.find(([from, to]) => from <= this.cursor && this.cursor < to);
    const segment = this.segmentAt(this.cursor);
    if (over) this.choose(Math.max(this.first, over[0]), Math.min(this.until, over[1]));
    else if (segment) this.choose(segment.from, segment.to);
  }

  /** Where the cursor stops: beginnings of segments, of what is drawn over them, and steps with rejects. */
  stops() {
    const stops = new Set(this.segments.map((each) => each.from));
    for (const [from] of [...this.data.exceptions, ...this.data.in_flight, ...this.data.rejects]) stops.add(from);
    return [...stops].filter((stop) => this.first <= stop && stop < this.until).sort((a, b) => a - b);
  }

  draw() {
    if (!this.data) return;
    const ratio = devicePixelRatio || 1;
    const width = this.width;
    this.canvas.width = width * ratio;
    this.canvas.height = HEIGHT * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    let isOdd = false;
    for (const segment of this.segments) {
      const [x, end] = [this.x(segment.from), this.x(segment.to)];
      isOdd = !isOdd;
      this.band(pen, colour, segment.kind, x, end - x, isOdd && !segment.merged);
    }
    // What is narrower than a step is drawn two pixels wide, above all else.
    for (const [from, to, kind] of this.data.exceptions) {
      const x = this.x(Math.max(from, this.first));
      this.band(pen, colour, kind, x, Math.max(3, this.x(Math.min(to, this.until)) - x), false);
    }
    pen.fillStyle = colour("reject");
    for (const [from, to, number] of this.data.rejects) {
      const x = this.x(from);
      const height = 3 + Math.min(1, Math.log10(number + 1) / 2) * (REJECTS.height - 3);
      pen.fillRect(x, REJECTS.top + REJECTS.height - height, Math.max(2, this.x(to) - x - 0.5), height);
    }
    for (const [from, to, kind] of this.data.in_flight) {
      const x = this.x(Math.max(from, this.first));
      const wide = Math.max(3, this.x(Math.min(to, this.until)) - x);
      pen.fillStyle = colour("flight");
      pen.fillRect(x, FLIGHT.top, wide, FLIGHT.height);
      pen.fillStyle = colour(kind);
      pen.fillRect(x, FLIGHT.top + FLIGHT.height - 3, wide, 3);
    }
    this.line(pen, colour("stored"), this.data.next_offset);
    if (this.data.horizon !== null) this.line(pen, colour("horizon"), this.data.horizon, [3, 2]);
    if (this.selection) {
      const [x, end] = this.selection.map((offset) => this.x(offset));
      pen.strokeStyle = colour("text");
      pen.lineWidth = 2;
      pen.strokeRect(x, BAND.top - 2, Math.max(3, end - x), BAND.height + 4);
    }
    if (document.activeElement === this.slider) {
      const x = this.x(this.cursor);
      pen.fillStyle = colour("text");
      pen.beginPath();
      pen.moveTo(x - 4, HEIGHT);
      pen.lineTo(x + 4, HEIGHT);
      pen.lineTo(x, BAND.top + BAND.height + 2);
      pen.fill();
    }
  }

  line(pen, colour, offset, dash = []) {
    if (offset < this.first || offset > this.until) return;
    const x = Math.round(Math.min(this.width - 1, this.x(offset))) + 0.5;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(x, BAND.top - 4);
    pen.lineTo(x, BAND.top + BAND.height + 4);
    pen.stroke();
    pen.setLineDash([]);
  }

  band(pen, colour, kind, x, width, isOdd) {
    const { top, height } = BAND;
    const wide = Math.max(1, width);
    if (kind === "outside") return;
    pen.fillStyle = kind === "batch" && isOdd ? colour("batch-odd") : colour(kind);
    pen.fillRect(x, top, wide, height);
    const hatch = { replay: [5, 1], backfill: [5, -1], loss: [4, 1], pruned: [7, 1], removed: [7, -1] }[kind];
    if (kind === "gap") {
      pen.strokeStyle = colour("gap-hatch");
      pen.lineWidth = 1.5;
      pen.setLineDash(wide < 6 ? [] : [3, 2]);
      pen.strokeRect(x + 0.75, top + 0.75, Math.max(1, wide - 1.5), height - 1.5);
      pen.setLineDash([]);
    }
    if (!hatch || wide < 4) return;
    const [gap, slope] = hatch;
    pen.save();
    pen.beginPath();
    pen.rect(x, top, wide, height);
    pen.clip();
    pen.strokeStyle = colour(`${kind}-hatch`) || colour("hatch");
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - height; at < x + wide + height; at += gap) {
      pen.moveTo(at, slope > 0 ? top + height : top);
      pen.lineTo(at + height, slope > 0 ? top : top + height);
    }
    pen.stroke();
    pen.restore();
    if (kind === "loss") {
      pen.strokeStyle = colour("loss-hatch");
      pen.strokeRect(x + 0.5, top + 0.5, Math.max(1, wide - 1), height - 1);
    }
  }

  /** All that is drawn, as rows: for those who do not see the band. */
  drawTable() {
    if (!this.table.open || !this.segments) return;
    const rows = this.segments
      .filter((each) => each.kind !== "outside")
      .map((each) => [each.from, each.to, each.kind, wordsOf(each)])
      .concat(this.data.exceptions.map(([from, to, kind, batch]) => [from, to, kind, batch === null ? WORDS[kind] : `${WORDS[kind]} ${batch}`]))
      .concat(this.data.in_flight.map(([from, to, kind, batch]) => [from, to, kind, `in flight: ${WORDS[kind]} ${batch}`]))
      .concat(this.data.rejects.map(([from, to, number]) => [from, to, "reject", number >= 100 ? "100 rejects or more" : plural(number, "reject")]))
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    this.table.lastElementChild.replaceChildren(
      el(
        "div",
        { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `Table of ${this.name}` },
        el(
          "table",
          {},
          el("thead", {}, el("tr", {}, el("th", { class: "number" }, "From"), el("th", { class: "number" }, "Up to"), el("th", {}, "What"))),
          el("tbody", {}, rows.slice(0, 500).map(([from, to, kind, words]) => el(
            "tr",
            {},
            el("td", { class: "number" }, count(from)),
            el("td", { class: "number" }, count(to - 1)),
            el("td", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), words),
          ))),
        ),
      ),
      rows.length > 500 ? el("p", { class: "quiet" }, `The first 500 of ${count(rows.length)}. Zoom in for the others.`) : "",
    );
  }
}

export const LEGEND = [
  ["batch", "batch"],
  ["replay", "replay"],
  ["backfill", "backfill"],
  ["pruned", "folded by prune"],
  ["loss", "lost"],
  ["gap", "gap"],
  ["waiting", "not processed yet"],
  ["before", "before the beginning"],
  ["removed", "removed by retention"],
  ["reject", "rejects"],
  ["flight", "in flight"],
  ["stored", "stored offset"],
  ["horizon", "replay horizon"],
];

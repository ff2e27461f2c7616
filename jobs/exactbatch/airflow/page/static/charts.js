// Throughput, seconds and lag over time, with uPlot; each chart also as a table.

import { el } from "./dom.js";
import { compact, count, duration, moment, rate } from "./format.js";

/** A chart of values over time. `series` are [label, unit, CSS variable]; the data are lists like uPlot's. */
export class TimeChart {
  constructor(title, series) {
    this.series = series;
    this.plot = el("div", { class: "plot", "aria-hidden": "true" });
    this.table = el("details", { ontoggle: () => this.drawTable() }, el("summary", {}, "As a table"), el("div"));
    this.empty = el("p", { class: "quiet", hidden: true }, "There is nothing to draw yet.");
    this.node = el("figure", {}, el("figcaption", {}, title), this.plot, this.empty, this.table);
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(this.plot);
    addEventListener("themechange", () => this.draw());
  }

  size() { return { width: Math.max(200, this.plot.clientWidth), height: 170 }; }

  show(data) {
    if (JSON.stringify(data) === JSON.stringify(this.data)) return;
    this.data = data;
    this.empty.hidden = data[0].length > 1;
    this.plot.hidden = data[0].length < 2;
    if (this.chart && !this.plot.hidden) this.chart.setData(data);
    else this.draw();
    this.drawTable();
  }

  draw() {
    if (!this.data || this.data[0].length < 2) return;
    this.chart?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    this.chart = new window.uPlot(
      {
        ...this.size(),
        cursor: { points: { size: 6 } },
        legend: { live: true },
        scales: Object.fromEntries(this.series.map(([, unit]) => [unit, { range: (_plot, _min, max) => [0, (max || 1) * 1.1] }])),
        series: [
          { value: (_plot, at) => (at === null ? "" : moment(new Date(at * 1000).toISOString())) },
          ...this.series.map(([label, unit, name]) => ({
            label, scale: unit, stroke: colour(name), width: 1.5, points: { show: this.data[0].length < 60, size: 5 },
            value: (_plot, value) => text(unit, value),
          })),
        ],
        axes: [
          { ...axis, space: 70, values: (_plot, times) => times.map((at, place) => clock(at, times[place - 1])) },
          ...this.series.map(([, unit, name], place) => ({
            ...axis, scale: unit, side: place ? 1 : 3, size: 56, stroke: colour(name), grid: place ? { show: false } : axis.grid,
            values: (_plot, values) => values.map((value) => text(unit, value)),
          })),
        ],
      },
      this.data,
      this.plot,
    );
  }

  drawTable() {
    if (!this.table.open || !this.data) return;
    const [times, ...values] = this.data;
    const rows = times.map((at, place) => [at, ...values.map((each) => each[place])]).reverse().slice(0, 300);
    this.table.lastElementChild.replaceChildren(
      el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Values" }, el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", {}, "Time"), this.series.map(([label]) => el("th", { class: "number" }, label)))),
        el("tbody", {}, rows.map(([at, ...row]) => el(
          "tr",
          {},
          el("td", {}, moment(new Date(at * 1000).toISOString())),
          row.map((value, place) => el("td", { class: "number" }, text(this.series[place][1], value))),
        ))),
      )),
    );
  }
}

/** The time of a tick, with the day where it changes. */
function clock(at, before) {
  const [date, last] = [new Date(at * 1000), before === undefined ? null : new Date(before * 1000)];
  const time = `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`;
  const isNewDay = last !== null && last.toDateString() !== date.toDateString();
  return isNewDay ? `${time}\n${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}` : time;
}

function text(unit, value) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") return duration(value);
  if (unit === "/s") return rate(value);
  return value < 10000 ? count(Math.round(value)) : compact(value);
}

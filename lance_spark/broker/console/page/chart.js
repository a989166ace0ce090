// Lines over time as inline SVG: the small ones in tiles and tables, and the large one of
// a topic. What they show is said in words too.

import { el, setAttribute, setText, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 160;
// Points: 10 minutes of seconds, as the broker keeps them.
const POINTS_MAX = 600;
const MINUTES = [1, 2, 5, 10];

/** Points of [time_ms, …values], the oldest first, at most 10 minutes of them. */
export class History {
  constructor() {
    this.points = [];
  }

  reset(points) {
    this.points = points.slice(-POINTS_MAX);
  }

  push(point) {
    const last = this.points.at(-1);
    if (last && point[0] <= last[0]) return;
    this.points.push(point);
    if (this.points.length > POINTS_MAX) this.points.shift();
  }

  series(index) {
    return this.points.map((point) => [point[0], point[index]]);
  }
}

function path(points, { start, span, top, width, height }) {
  return points
    .map(([time, value], at) => {
      const x = (((time - start) / span) * width).toFixed(1);
      const y = (height - (value / top) * height).toFixed(1);
      return `${at ? "L" : "M"}${x} ${y}`;
    })
    .join("");
}

/** A small line without axes. `describe(points)` is its text for screen readers. */
export class Sparkline {
  constructor(describe) {
    this.describe = describe;
    this.area = svg("path", { class: "spark-area" });
    this.line = svg("path", { class: "spark-line", "vector-effect": "non-scaling-stroke" });
    this.node = svg(
      "svg",
      { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img" },
      this.area,
      this.line,
    );
  }

  update(points) {
    setAttribute(this.node, "aria-label", points.length ? this.describe(points) : "no data yet");
    if (points.length < 2) {
      this.line.setAttribute("d", "");
      this.area.setAttribute("d", "");
      return;
    }
    const start = points[0][0];
    const span = Math.max(1, points.at(-1)[0] - start);
    const top = Math.max(1e-9, ...points.map((point) => point[1])) * 1.1;
    const drawn = path(points, { start, span, top, width: 100, height: 24 });
    this.line.setAttribute("d", drawn);
    this.area.setAttribute("d", `${drawn}L100 24L0 24Z`);
  }
}

/** The next round number above a value: 1, 2 or 5 and noughts. */
export function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

/** Two lines, in and out, over at most the last ten minutes. */
export class Chart {
  constructor({ title, format }) {
    this.format = format;
    this.lines = ["in", "out"].map((name) =>
      svg("path", { class: `line-${name}`, "vector-effect": "non-scaling-stroke" }),
    );
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.plot = svg(
      "svg",
      { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0, 0.5, 1].map((part) =>
        svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part, "vector-effect": "non-scaling-stroke" }),
      ),
      this.lines,
      this.cursor,
    );
    this.labels = [0, 1, 2].map(() => el("span"));
    this.times = [0, 1, 2].map(() => el("span"));
    this.readout = el("span", { class: "readout" });
    this.summary = el("span", { class: "muted" });
    this.node = el(
      "figure",
      { class: "chart" },
      el(
        "figcaption",
        {},
        el("span", { class: "chart-title", text: title }),
        el("span", { class: "legend" }, el("i", { class: "key-in", "aria-hidden": "true" }), "in"),
        el("span", { class: "legend" }, el("i", { class: "key-out", "aria-hidden": "true" }), "out"),
        this.readout,
      ),
      el("div", { class: "plot-box" }, el("div", { class: "ys", "aria-hidden": "true" }, this.labels), this.plot),
      el("div", { class: "xs", "aria-hidden": "true" }, this.times),
      el("p", { class: "chart-summary" }, this.summary),
    );
    this.points = [];
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.unpoint());
  }

  /** Draw points of [time_ms, in, out]. */
  update(points) {
    this.points = points;
    const end = points.length ? points.at(-1)[0] : Date.now();
    this.setSpan(points.length ? end - points[0][0] : 0);
    this.start = end - this.span;
    const highest = Math.max(0, ...points.flatMap((point) => [point[1], point[2]]));
    const top = ceiling(highest);
    [top, top / 2, 0].forEach((value, at) => setText(this.labels[at], this.format(value)));
    const frame = { start: this.start, span: this.span, top, width: WIDTH, height: HEIGHT };
    this.lines.forEach((line, at) => {
      const series = points.map((point) => [point[0], point[at + 1]]);
      line.setAttribute("d", series.length > 1 ? path(series, frame) : "");
    });
    const now = points.at(-1) ?? [0, 0, 0];
    const text = `Now ${this.format(now[1])} in, ${this.format(now[2])} out. Highest in this time: ${this.format(highest)}.`;
    setText(this.summary, points.length ? text : "No traffic was measured yet.");
  }

  /** Choose how much time is shown: a broker that has just started has little. A tenth
   * more than fits is cut off rather than drawn in half the width. */
  setSpan(ms) {
    const minutes = MINUTES.find((one) => one * 66_000 >= ms) ?? MINUTES.at(-1);
    this.span = minutes * 60_000;
    const half = minutes === 1 ? "30 s" : `${minutes / 2} min`;
    [`${minutes} min ago`, half, "now"].forEach((text, at) => setText(this.times[at], text));
  }

  point(event) {
    if (!this.points.length) return;
    const box = this.plot.getBoundingClientRect();
    const time = this.start + ((event.clientX - box.left) / box.width) * this.span;
    const found = this.points.reduce((best, point) =>
      Math.abs(point[0] - time) < Math.abs(best[0] - time) ? point : best,
    );
    const x = ((found[0] - this.start) / this.span) * WIDTH;
    setAttribute(this.cursor, "x1", x);
    setAttribute(this.cursor, "x2", x);
    setAttribute(this.cursor, "visibility", "visible");
    const at = new Date(found[0]).toLocaleTimeString("en-GB");
    setText(this.readout, `${at}: ${this.format(found[1])} in, ${this.format(found[2])} out`);
  }

  unpoint() {
    setAttribute(this.cursor, "visibility", "hidden");
    setText(this.readout, "");
  }
}

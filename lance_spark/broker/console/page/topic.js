// One topic: its facts, its rates over the last ten minutes, and its records.

import { deleteTopic, setRetention } from "./admin.js";
import { get, partitionsLink, topicPath } from "./api.js";
import { Chart, History } from "./chart.js";
import { el, quote, setText } from "./dom.js";
import { ago, bytes, bytesRate, count, moment, rate, retention } from "./format.js";
import { topicName } from "./overview.js";
import { RecordsPanel } from "./records.js";

// What the overview does not hold is asked for again after so many overviews.
const DETAIL_EVERY = 10;

export class TopicView {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.section = "overview";
    this.history = new History();
    this.detail = null;
    this.ticks = 0;
    this.isGone = false;
    this.abort = new AbortController();
    this.unit = "records";
    this.facts = el("dl", { class: "facts" });
    this.charts = {
      records: new Chart({ title: "Records per second", format: rate }),
      bytes: new Chart({ title: "Bytes per second", format: bytesRate }),
    };
    this.charts.bytes.node.hidden = true;
    this.records = new RecordsPanel(this);
    this.gone = el("div", { class: "panel empty", hidden: true });
    this.body = el("div", {}, this.makeTop(), this.records.node);
    this.node = el("div", {}, this.makeHead(), this.gone, this.body);
  }

  makeHead() {
    // Only the name of a partition has a slash, behind that of its topic.
    const family = this.name.slice(0, Math.max(0, this.name.lastIndexOf("/")));
    const back = family
      ? el("a", { href: partitionsLink(family), class: "back" }, "← ", quote(family))
      : el("a", { href: "#/", class: "back", text: "← Topics" });
    const title = el("h1", {}, quote(topicName({ name: this.name })));
    const actions = [];
    // A partition can't be changed or deleted alone.
    if (this.app.isAdmin && this.name !== "" && !family) {
      actions.push(
        el("button", { type: "button", text: "Retention…", onclick: () => this.detail && setRetention(this.detail, () => this.reload()) }),
        el("button", { type: "button", class: "danger", text: "Delete…", onclick: () => deleteTopic({ name: this.name }) }),
      );
    }
    this.actions = el("div", { class: "actions" }, actions);
    return el("div", { class: "view-head" }, back, title, el("span", { class: "grow" }), this.actions);
  }

  makeTop() {
    const choice = (value, label) =>
      el(
        "label",
        { class: "choice" },
        el("input", { type: "radio", name: "unit", value, checked: value === this.unit, onchange: () => this.setUnit(value) }),
        label,
      );
    const units = el("fieldset", { class: "choices" }, el("legend", { class: "sr", text: "What the chart shows" }), choice("records", "Records"), choice("bytes", "Bytes"));
    return el(
      "div",
      { class: "two" },
      el("section", { class: "panel pad", "aria-label": "Facts" }, this.facts),
      el("section", { class: "panel pad", "aria-label": "Rates" }, units, this.charts.records.node, this.charts.bytes.node),
    );
  }

  setUnit(unit) {
    this.unit = unit;
    for (const [name, chart] of Object.entries(this.charts)) chart.node.hidden = name !== unit;
    this.draw();
  }

  draw() {
    const [first, second] = this.unit === "records" ? [1, 3] : [2, 4];
    this.charts[this.unit].update(this.history.points.map((p) => [p[0], p[first], p[second]]));
  }

  // Entering, leaving, and where in the topic we are.

  enter() {
    this.reload();
  }

  leave() {
    this.abort.abort();
    this.records.leave();
  }

  navigate(parameters) {
    this.records.navigate(parameters);
  }

  getHistory() {
    return get(`/api/history?topic=${encodeURIComponent(this.name)}`, this.abort.signal);
  }

  /** Learn the rates of moments that no overview has told of. */
  async catchUp() {
    try {
      this.history.reset((await this.getHistory()).points);
      this.draw();
    } catch (error) {
      this.fail(error);
    }
  }

  async reload() {
    try {
      const [detail, history] = await Promise.all([
        get(topicPath(this.name), this.abort.signal),
        this.getHistory(),
      ]);
      // One that was made anew has nothing of what is shown.
      if (this.isGone || this.isOther(detail)) this.records.forget();
      this.history.reset(history.points);
      this.setGone(false);
      this.setDetail(detail);
      this.draw();
      this.records.reload();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Whether a topic is another one of the same name. Ids begin anew with the data
   * directory, the time of creation does not. */
  isOther({ id, created_ms: created }) {
    return this.detail !== null && (this.detail.id !== id || this.detail.created_ms !== created);
  }

  async refreshDetail() {
    try {
      this.setDetail(await get(topicPath(this.name), this.abort.signal));
    } catch (error) {
      this.fail(error);
    }
  }

  /** Show an error; a topic that is not there any more empties the view. */
  fail(error) {
    if (this.abort.signal.aborted || error.status === 0) return;
    if (error.status === 404) this.setGone(true);
    this.app.fail(error);
  }

  setGone(isGone) {
    if (isGone && !this.isGone) {
      this.gone.replaceChildren(
        el("p", { class: "empty-title" }, "Topic ", quote(topicName({ name: this.name })), " is not there."),
        el("p", { text: "It was deleted, or never made, or this visitor may not see it." }),
        el("p", {}, el("a", { href: "#/", text: "All topics" })),
      );
    }
    this.isGone = isGone;
    this.gone.hidden = !isGone;
    this.body.hidden = isGone;
    this.actions.hidden = isGone;
  }

  // Live.

  take(overview) {
    const found = overview.topics.find((topic) => topic.name === this.name);
    if (found === undefined) {
      // The topic's own address knows better, and also says why.
      if (!this.isGone && this.detail !== null) this.refreshDetail();
      return;
    }
    if (this.isGone || this.isOther(found)) {
      this.reload();
      return;
    }
    this.history.push([
      overview.time_ms,
      found.records_in_per_s,
      found.bytes_in_per_s,
      found.records_out_per_s,
      found.bytes_out_per_s,
    ]);
    this.ticks += 1;
    if (this.ticks % DETAIL_EVERY === 0) this.refreshDetail();
    this.setDetail({ ...this.detail, ...found });
    this.draw();
    this.records.take(found);
  }

  setDetail(detail) {
    this.detail = detail;
    const now = this.app.overview?.time_ms ?? Date.now();
    const rule = detail.rule ? Object.entries(detail.rule).map(([key, value]) => `${key}: ${String(value)}`).join("; ") : "none";
    const facts = [
      ...(detail.partitions > 1 ? [["Partition", `${detail.partition} of ${detail.partitions}`]] : []),
      ["Records", count(detail.records)],
      ["Size", bytes(detail.bytes)],
      ["On disk", bytes(detail.disk_bytes)],
      ["Segments", count(detail.segments)],
      ["Log start", count(detail.log_start)],
      ["Log end", count(detail.log_end)],
      ["Retention", retention(detail.retention)],
      ["Last append", ago(detail.last_append_ms, now)],
      ["Created", moment(detail.created_ms).slice(0, 19)],
      ["Consumers", count(detail.consumers)],
      ["Open stages", count(detail.stages)],
      ["Access rule", rule],
    ];
    if (!this.facts.children.length) {
      for (const [name] of facts) this.facts.append(el("div", {}, el("dt", { text: name }), el("dd", {})));
    }
    facts.forEach(([, value], at) => setText(this.facts.children[at].lastChild, value));
  }

  // Keys.

  focusFilter() {
    this.records.focusSearch();
  }

  next() {
    this.records.next();
  }

  previous() {
    this.records.previous();
  }

  toggleFollow() {
    this.records.toggleFollow();
  }
}

// A topic with several partitions: what they are together, and each of them.

import { deleteTopic } from "./admin.js";
import { topicLink } from "./api.js";
import { el, quote, setText } from "./dom.js";
import { ago, bytes, count, moment, retention } from "./format.js";
import { gatherTopics, makeColumns } from "./overview.js";
import { Table } from "./table.js";

export class PartitionsView {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.section = "overview";
    this.topic = null;
    const remove = el("button", { type: "button", class: "danger", text: "Delete…", onclick: () => this.topic && deleteTopic(this.topic) });
    this.actions = el("div", { class: "actions" }, app.isAdmin ? remove : null);
    this.facts = el("dl", { class: "facts" });
    this.gone = el(
      "div",
      { class: "panel empty", hidden: true },
      el("p", { class: "empty-title" }, "Topic ", quote(name), " is not there."),
      el("p", { text: "It was deleted, or never made with several partitions, or this visitor may not see it." }),
      el("p", {}, el("a", { href: "#/", text: "All topics" })),
    );
    this.table = new Table({
      caption: "Partitions",
      key: (log) => String(log.id),
      sort: "name",
      columns: makeColumns(app, { label: "Partition", sort: (log) => log.partition, fill: fillNumber }),
    });
    this.body = el(
      "div",
      { hidden: true },
      el("section", { class: "panel pad", "aria-label": "Facts" }, this.facts),
      el("section", { class: "panel", "aria-labelledby": "partitions-title" }, el("div", { class: "panel-head" }, el("h2", { id: "partitions-title", text: "Partitions" })), this.table.node),
    );
    const back = el("a", { href: "#/", class: "back", text: "← Topics" });
    const head = el("div", { class: "view-head" }, back, el("h1", {}, quote(name)), el("span", { class: "grow" }), this.actions);
    this.node = el("div", {}, head, this.gone, this.body);
  }

  take(overview) {
    const logs = overview.topics.filter((log) => log.topic === this.name && log.partitions > 1);
    const isGone = logs.length === 0;
    this.gone.hidden = !isGone;
    this.body.hidden = isGone;
    this.actions.hidden = isGone;
    if (isGone) return;
    [this.topic] = gatherTopics(logs);
    this.showFacts(this.topic, overview.time_ms);
    this.table.update(logs);
  }

  showFacts(topic, now) {
    const facts = [
      ["Partitions", count(topic.partitions)],
      ["Records", count(topic.records)],
      ["Size", bytes(topic.bytes)],
      ["On disk", bytes(topic.disk_bytes)],
      ["Retention", retention(topic.retention)],
      ["Last append", ago(topic.last_append_ms, now)],
      ["Created", moment(topic.created_ms).slice(0, 19)],
    ];
    if (!this.facts.children.length) {
      for (const [name] of facts) this.facts.append(el("div", {}, el("dt", { text: name }), el("dd", {})));
    }
    facts.forEach(([, value], at) => setText(this.facts.children[at].lastChild, value));
  }
}

function fillNumber(cell, log) {
  if (cell.firstChild) return; // A log keeps its number.
  cell.append(el("a", { href: topicLink(log.name), text: `partition ${log.partition}` }));
}

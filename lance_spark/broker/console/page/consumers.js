// Groups and consumers: what they have committed, and how far they are behind over time.

import { Sparkline } from "./chart.js";
import { el, quote, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { fillTopic } from "./stages.js";
import { PolledView, Table } from "./table.js";

function describe(points) {
  const highest = Math.max(...points.map((point) => point[1]));
  return `behind over time: ${bytes(points[0][1])} at first, at most ${bytes(highest)}, now ${bytes(points.at(-1)[1])}`;
}

function fillSpark(cell, points) {
  if (!cell.spark) {
    cell.spark = new Sparkline(describe);
    cell.append(cell.spark.node);
  }
  cell.spark.update(points);
}

class GroupPanel {
  constructor(name) {
    this.facts = el("span", { class: "muted" });
    this.lag = new Table({
      caption: `Lag of group ${name}`,
      key: (row) => row.topic,
      sort: "topic",
      empty: el("p", { text: "It has committed nothing yet." }),
      columns: [
        { key: "topic", label: "Topic", isHeader: true, sort: (r) => r.topic, fill: (cell, r) => fillTopic(cell, r.topic) },
        { key: "committed", label: "Committed", numeric: true, sort: (r) => r.committed, cell: (r) => count(r.committed) },
        { key: "records", label: "Records behind", numeric: true, sort: (r) => r.records_behind, cell: (r) => count(r.records_behind) },
        { key: "bytes", label: "Bytes behind", numeric: true, sort: (r) => r.bytes_behind, cell: (r) => bytes(r.bytes_behind) },
        { key: "history", label: "Lag over time", fill: (cell, r) => fillSpark(cell, r.history) },
      ],
    });
    this.members = new Table({
      caption: `Members of group ${name}`,
      key: (member) => member.id,
      empty: el("p", { text: "The group has no members now; its commits stay." }),
      columns: [
        { key: "id", label: "Member", isHeader: true, fill: (cell, m) => cell.firstChild || cell.append(quote(m.id, { class: "mono" })) },
        { key: "topics", label: "Subscribed to", fill: (cell, m) => fillNames(cell, m.topics) },
        { key: "assigned", label: "Assigned", fill: (cell, m) => fillNames(cell, m.assigned) },
      ],
    });
    this.node = el(
      "section",
      { class: "panel" },
      el("div", { class: "panel-head" }, el("h3", {}, quote(name)), this.facts),
      this.lag.node,
      this.members.node,
    );
  }

  update(group, consumers) {
    const many = group.members.length === 1 ? "1 member" : `${group.members.length} members`;
    setText(this.facts, `${many}, generation ${group.generation}, ${group.strategy}`);
    const topics = new Set(group.members.flatMap((member) => member.topics));
    // A group commits as one consumer, whichever member does it.
    this.lag.update(consumers.filter((row) => row.group === group.name && topics.has(row.topic)));
    this.members.update(group.members);
  }
}

function fillNames(cell, names) {
  const key = JSON.stringify(names);
  if (cell.dataset.shown === key) return;
  cell.dataset.shown = key;
  const nodes = names.flatMap((name, at) => (at ? [", ", quote(name)] : [quote(name)]));
  cell.replaceChildren(...(nodes.length ? nodes : ["–"]));
}

export class ConsumersView extends PolledView {
  constructor(app) {
    super(app, "/api/consumers");
    this.key = "consumers";
    this.panels = new Map();
    this.groups = el("div", {});
    this.noGroups = el(
      "div",
      { class: "panel empty", hidden: true },
      el("p", { class: "empty-title", text: "No groups." }),
      el("p", { text: "A group shares the topics among its members: GroupedConsumer of the client makes one." }),
    );
    this.leftOut = el("p", { class: "muted", hidden: true });
    this.table = this.makeTable();
    this.node = el(
      "div",
      {},
      el("div", { class: "view-head" }, el("h1", { text: "Consumers" })),
      el("h2", { text: "Groups" }),
      this.groups,
      this.noGroups,
      el("h2", { text: "All consumers" }),
      el("section", { class: "panel" }, this.table.node),
      this.leftOut,
    );
  }

  makeTable() {
    return new Table({
      caption: "All consumers",
      key: (consumer) => `${consumer.id} ${consumer.topic}`,
      sort: "topic",
      empty: [
        el("p", { class: "empty-title", text: "No consumer has committed an offset yet." }),
        el("p", { text: "Consumer.commit() of the client and the option consumerGroup of a streaming query make them known here." }),
      ],
      columns: [
        { key: "id", label: "Consumer", isHeader: true, sort: (c) => c.id, fill: (cell, c) => cell.firstChild || cell.append(el("span", { class: "mono", text: c.id })) },
        { key: "group", label: "Group", sort: (c) => c.group, fill: (cell, c) => fillNames(cell, c.group === null ? [] : [c.group]) },
        { key: "topic", label: "Topic", sort: (c) => c.topic, fill: (cell, c) => fillTopic(cell, c.topic) },
        { key: "committed", label: "Committed", numeric: true, sort: (c) => c.committed, cell: (c) => count(c.committed) },
        { key: "records", label: "Records behind", numeric: true, sort: (c) => c.records_behind, cell: (c) => count(c.records_behind) },
        { key: "bytes", label: "Bytes behind", numeric: true, sort: (c) => c.bytes_behind, cell: (c) => bytes(c.bytes_behind) },
        { key: "history", label: "Lag over time", fill: (cell, c) => fillSpark(cell, c.history) },
      ],
    });
  }

  update({ groups, consumers, left_out: leftOut }) {
    const names = new Set(groups.map((group) => group.name));
    for (const [name, panel] of this.panels) {
      if (names.has(name)) continue;
      panel.node.remove();
      this.panels.delete(name);
    }
    for (const group of groups) {
      let panel = this.panels.get(group.name);
      if (panel === undefined) {
        panel = new GroupPanel(group.name);
        this.panels.set(group.name, panel);
        this.groups.append(panel.node);
      }
      panel.update(group, consumers);
    }
    this.noGroups.hidden = groups.length > 0;
    this.table.update(consumers);
    this.leftOut.hidden = leftOut === 0;
    setText(this.leftOut, `${count(leftOut)} more are not shown.`);
  }
}

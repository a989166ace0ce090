// The first view: what goes in and out now, and all topics.

import { get, partitionsLink, topicLink } from "./api.js";
import { createTopic } from "./admin.js";
import { History, Sparkline } from "./chart.js";
import { el, quote, setText } from "./dom.js";
import { ago, bytes, bytesRate, count, duration, rate, retention } from "./format.js";
import { Table } from "./table.js";

const EXAMPLE = `from lance_spark.client import LanceClient, Producer

with LanceClient("ADDRESS") as client:
    with Producer(client, "events", create_topic=True) as producer:
        producer.send(b'{"hello": "world"}')`;

class Tile {
  constructor(title, { spark } = {}) {
    this.value = el("span", { class: "tile-value" });
    this.unit = el("span", { class: "tile-unit" });
    this.note = el("p", { class: "tile-note muted" });
    this.spark = spark ? new Sparkline(spark) : null;
    this.node = el(
      "section",
      { class: "tile" },
      el("h2", { text: title }),
      el("p", { class: "tile-main" }, this.value, " ", this.unit),
      this.note,
      this.spark?.node,
    );
  }

  set(value, unit, note) {
    setText(this.value, value);
    setText(this.unit, unit);
    setText(this.note, note);
  }
}

function describe(points) {
  const highest = Math.max(...points.map((point) => point[1]));
  return `last 10 minutes: now ${rate(points.at(-1)[1])} per second, at most ${rate(highest)}`;
}

export function topicName(topic) {
  return topic.name === "" ? "(default topic)" : topic.name;
}

/** What a table says of a topic, or of one of its partitions. */
export function makeColumns(app, name) {
  const now = () => app.overview?.time_ms ?? Date.now();
  return [
    { key: "name", isHeader: true, ...name },
    { key: "records", label: "Records", numeric: true, sort: (t) => t.records, cell: (t) => count(t.records) },
    { key: "bytes", label: "Size", numeric: true, sort: (t) => t.bytes, cell: (t) => bytes(t.bytes) },
    { key: "in", label: "In/s", numeric: true, hint: "records per second that are written", sort: (t) => t.records_in_per_s, cell: (t) => rate(t.records_in_per_s) },
    { key: "out", label: "Out/s", numeric: true, hint: "records per second that are read", sort: (t) => t.records_out_per_s, cell: (t) => rate(t.records_out_per_s) },
    { key: "start", label: "Log start", numeric: true, hint: "offset of the oldest record", sort: (t) => t.log_start, cell: (t) => count(t.log_start) },
    { key: "end", label: "Log end", numeric: true, hint: "offset behind the newest record", sort: (t) => t.log_end, cell: (t) => count(t.log_end) },
    { key: "retention", label: "Retention", sort: (t) => t.retention.max_age_s || Infinity, cell: (t) => retention(t.retention) },
    { key: "last", label: "Last append", sort: (t) => t.last_append_ms, cell: (t) => ago(t.last_append_ms, now()) },
  ];
}

const SUMMED = ["records", "bytes", "disk_bytes", "records_in_per_s", "records_out_per_s"];

/** One row per topic: several partitions are added up, and have no offsets in common. */
export function gatherTopics(logs) {
  const families = new Map();
  for (const log of logs) families.set(log.topic, [...(families.get(log.topic) ?? []), log]);
  return [...families].map(([topic, all]) => {
    if (all[0].partitions === 1) return all[0];
    const sums = SUMMED.map((key) => [key, all.reduce((sum, log) => sum + log[key], 0)]);
    const last = Math.max(...all.map((log) => log.last_append_ms ?? 0)) || null;
    return { ...all[0], ...Object.fromEntries(sums), name: topic, log_start: null, log_end: null, last_append_ms: last };
  });
}

export class OverviewView {
  constructor(app) {
    this.app = app;
    this.key = "overview";
    this.history = new History();
    this.tiles = {
      recordsIn: new Tile("Records in", { spark: describe }),
      recordsOut: new Tile("Records out", { spark: describe }),
      connections: new Tile("Connections"),
      disk: new Tile("Disk"),
    };
    this.meter = el("meter", { min: 0, max: 1, low: 0.9, high: 0.95, optimum: 0, "aria-label": "part of the disk in use" });
    this.tiles.disk.node.append(this.meter);
    this.filter = el("input", {
      id: "filter",
      type: "search",
      placeholder: "part of a name",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.showTopics(),
    });
    this.counted = el("span", { class: "muted", role: "status" });
    this.table = this.makeTable();
    this.hidden = el("p", { class: "muted", hidden: true });
    this.uptime = el("span", { class: "muted" });
    this.protocols = el("dl", { class: "facts" });
    this.served = el(
      "section",
      { class: "panel pad", "aria-labelledby": "protocols-title", hidden: true },
      el("h2", { id: "protocols-title", text: "Protocols" }),
      this.protocols,
    );
    const create = app.isAdmin
      ? el("button", { type: "button", class: "primary", text: "Create topic", onclick: () => createTopic(app) })
      : null;
    this.node = el(
      "div",
      {},
      el("div", { class: "view-head" }, el("h1", { text: "Overview" }), this.uptime),
      el("div", { class: "tiles" }, Object.values(this.tiles).map((tile) => tile.node)),
      this.served,
      el(
        "section",
        { class: "panel", "aria-labelledby": "topics-title" },
        el(
          "div",
          { class: "panel-head" },
          el("h2", { id: "topics-title", text: "Topics" }),
          this.counted,
          el("span", { class: "grow" }),
          el("label", { for: "filter", text: "Filter" }),
          this.filter,
          create,
        ),
        this.table.node,
        this.hidden,
      ),
    );
  }

  makeTable() {
    return new Table({
      caption: "Topics",
      // Ids begin anew with the data directory.
      key: (topic) => `${topic.id} ${topic.name}`,
      sort: "name",
      empty: this.makeEmpty(),
      columns: makeColumns(this.app, { label: "Name", sort: (t) => t.name, fill: fillName }),
    });
  }

  makeEmpty() {
    this.emptyTitle = el("p", { class: "empty-title" });
    this.emptyHelp = el("div", {});
    return [this.emptyTitle, this.emptyHelp];
  }

  enter() {
    this.reload();
  }

  leave() {
    this.isLeft = true;
  }

  reload() {
    return this.catchUp();
  }

  /** Learn the rates of moments that no overview has told of. */
  async catchUp() {
    try {
      this.history.reset((await get("/api/history")).points);
    } catch (error) {
      if (error.status !== 0) this.app.fail(error);
      return;
    }
    if (this.app.overview && !this.isLeft) this.showTiles(this.app.overview);
  }

  take(overview) {
    const { traffic } = overview;
    this.history.push([
      overview.time_ms,
      traffic.records_in_per_s,
      traffic.bytes_in_per_s,
      traffic.records_out_per_s,
      traffic.bytes_out_per_s,
    ]);
    setText(this.uptime, `up ${duration(overview.uptime_s)}`);
    this.showTiles(overview);
    this.showProtocols(overview.broker.protocols);
    this.showTopics();
    this.hidden.hidden = !overview.hidden_topics;
    const many = overview.hidden_topics === 1 ? "1 topic is" : `${overview.hidden_topics} topics are`;
    setText(this.hidden, `${many} not shown: their rules ask for a client certificate.`);
  }

  showTiles({ traffic, broker }) {
    const { recordsIn, recordsOut, connections, disk } = this.tiles;
    recordsIn.set(rate(traffic.records_in_per_s), "per second", bytesRate(traffic.bytes_in_per_s));
    recordsIn.spark.update(this.history.series(1));
    recordsOut.set(rate(traffic.records_out_per_s), "per second", bytesRate(traffic.bytes_out_per_s));
    recordsOut.spark.update(this.history.series(3));
    connections.set(
      count(traffic.connections),
      traffic.connections === 1 ? "client" : "clients",
      `${rate(traffic.requests_per_s)} requests/s, ${rate(traffic.errors_per_s)} errors/s`,
    );
    const used = broker.disk_total_bytes - broker.disk_free_bytes;
    disk.set(bytes(broker.disk_bytes), "of data", `${bytes(broker.disk_free_bytes)} of ${bytes(broker.disk_total_bytes)} free`);
    this.meter.value = broker.disk_total_bytes ? used / broker.disk_total_bytes : 0;
  }

  /** Where each protocol is served; with LWP alone, the header says it. */
  showProtocols(protocols) {
    this.served.hidden = protocols.length < 2;
    if (this.protocols.children.length !== protocols.length) {
      this.protocols.replaceChildren(
        ...protocols.map(({ name }) => el("div", {}, el("dt", { text: name }), el("dd", {}))),
      );
    }
    protocols.forEach(({ address, connections }, at) => {
      const clients = connections === 1 ? "1 client" : `${count(connections)} clients`;
      setText(this.protocols.children[at].lastChild, `${address}, ${clients}`);
    });
  }

  showTopics() {
    const topics = gatherTopics(this.app.overview?.topics ?? []);
    const wanted = this.filter.value.trim().toLowerCase();
    const shown = wanted ? topics.filter((t) => topicName(t).toLowerCase().includes(wanted)) : topics;
    this.table.update(shown);
    const all = topics.length === 1 ? "1 topic" : `${count(topics.length)} topics`;
    setText(this.counted, wanted ? `${count(shown.length)} of ${all}` : all);
    if (!shown.length) this.showEmpty(topics.length > 0);
  }

  showEmpty(isFiltered) {
    const title = isFiltered ? "No topic has this in its name." : "No topics yet: here is how to write one.";
    if (this.emptyTitle.textContent === title) return;
    this.emptyTitle.textContent = title;
    const code = EXAMPLE.replace("ADDRESS", this.app.session.address);
    this.emptyHelp.replaceChildren(...(isFiltered ? [] : [el("pre", { tabindex: 0, "aria-label": "Example" }, el("code", { text: code }))]));
  }

  focusFilter() {
    this.filter.focus();
  }
}

function fillName(cell, topic) {
  if (cell.firstChild) return; // The name is part of the row's key.
  const name = quote(topicName(topic));
  if (topic.partitions === 1) cell.append(el("a", { href: topicLink(topic.name) }, name));
  else {
    const part = el("span", { class: "muted", text: `${topic.partitions} partitions` });
    cell.append(el("a", { href: partitionsLink(topic.name) }, name, " ", part));
  }
}

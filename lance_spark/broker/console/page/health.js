// How the broker is, and how it is set up.

import { el, quote, setText } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";

const WORDS = { warning: "Warning", error: "Error" };

export class HealthView {
  constructor(app) {
    this.app = app;
    this.key = "health";
    this.title = el("p", { class: "health-title", role: "status" });
    this.notes = el("ul", { class: "notes" });
    this.facts = el("dl", { class: "facts" });
    this.node = el(
      "div",
      {},
      el("div", { class: "view-head" }, el("h1", { text: "Health" })),
      el("section", { class: "panel pad" }, this.title, this.notes),
      el("section", { class: "panel pad", "aria-labelledby": "broker-title" }, el("h2", { id: "broker-title", text: "Broker" }), this.facts),
    );
  }

  take({ health, broker, traffic, uptime_s: uptime, topics }) {
    setText(this.title, health.notes.length ? "What to look at:" : "✓ Nothing to report: the broker is healthy.");
    const key = JSON.stringify(health.notes);
    if (key !== this.shown) {
      this.shown = key;
      this.notes.replaceChildren(
        ...health.notes.map(({ level, text }) =>
          el("li", { class: level }, el("strong", { text: `${WORDS[level]}: ` }), quote(text)),
        ),
      );
    }
    this.showFacts([
      ["Address", broker.address],
      ["Version", broker.version],
      ["Up for", duration(uptime)],
      ["Dialect", broker.dialect],
      ["Durability (fsync)", broker.fsync],
      ["TLS", broker.tls ? "on" : "off"],
      ["Tokens", broker.tokens ? "needed" : "not needed"],
      ["Topics", count(new Set(topics.map(({ topic }) => topic)).size)],
      ["Connections", count(traffic.connections)],
      ["Requests", `${rate(traffic.requests_per_s)} per second`],
      ["Errors", `${rate(traffic.errors_per_s)} per second`],
      ["Data directory", broker.data_dir],
      ["Data on disk", bytes(broker.disk_bytes)],
      ["Disk free", `${bytes(broker.disk_free_bytes)} of ${bytes(broker.disk_total_bytes)}`],
    ]);
  }

  showFacts(facts) {
    if (!this.facts.children.length) {
      for (const [name] of facts) {
        this.facts.append(el("div", {}, el("dt", { text: name }), el("dd", {})));
      }
    }
    facts.forEach(([, value], at) => setText(this.facts.children[at].lastChild, String(value)));
  }
}

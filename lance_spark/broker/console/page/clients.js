// The clients that are connected: who speaks which protocol.

import { el, quote, setText } from "./dom.js";
import { ago, count } from "./format.js";
import { PolledView, Table } from "./table.js";

export class ClientsView extends PolledView {
  constructor(app) {
    super(app, "/api/clients");
    this.key = "clients";
    this.counted = el("span", { class: "muted", role: "status" });
    this.table = this.makeTable();
    this.node = el(
      "div",
      {},
      el("div", { class: "view-head" }, el("h1", { text: "Clients" }), this.counted),
      el("p", { class: "lead", text: "A connection has one protocol. A request that waits is a long poll, a subscription or a watch." }),
      el("section", { class: "panel" }, this.table.node),
    );
  }

  makeTable() {
    const now = () => this.app.overview?.time_ms ?? Date.now();
    return new Table({
      caption: "Clients",
      key: ({ peer, protocol, since_ms: since }) => JSON.stringify([peer, protocol, since]),
      sort: "since",
      empty: el("p", { class: "empty-title", text: "No clients are connected." }),
      columns: [
        { key: "peer", label: "From", isHeader: true, sort: (c) => c.peer, cell: (c) => c.peer },
        { key: "protocol", label: "Protocol", sort: (c) => c.protocol, cell: (c) => c.protocol },
        { key: "name", label: "Certificate", sort: (c) => c.name, fill: fillName },
        { key: "standing", label: "Waiting requests", numeric: true, sort: (c) => c.standing, cell: (c) => count(c.standing) },
        { key: "since", label: "Connected", sort: (c) => c.since_ms, cell: (c) => ago(c.since_ms, now()) },
      ],
    });
  }

  update({ clients, left_out: leftOut }) {
    this.table.update(clients);
    const all = clients.length + leftOut;
    const text = all === 1 ? "1 connected" : `${count(all)} connected`;
    setText(this.counted, leftOut ? `${text}, ${count(clients.length)} shown` : text);
  }
}

function fillName(cell, { name }) {
  if (!cell.firstChild) cell.append(name === null ? "–" : quote(name));
}

// Stages that are open: what writers have sent and not committed yet.

import { topicLink } from "./api.js";
import { abortStages } from "./admin.js";
import { el, quote, setText } from "./dom.js";
import { ago, bytes, count, duration } from "./format.js";
import { PolledView, Table } from "./table.js";

export class StagesView extends PolledView {
  constructor(app) {
    super(app, "/api/stages");
    this.key = "stages";
    this.counted = el("span", { class: "muted", role: "status" });
    this.table = this.makeTable();
    this.node = el(
      "div",
      {},
      el("div", { class: "view-head" }, el("h1", { text: "Stages" }), this.counted),
      el("p", { class: "lead", text: "A stage holds records that a writer has sent and not committed yet. Readers see them after the commit; a stage that is forgotten expires." }),
      el("section", { class: "panel" }, this.table.node),
    );
  }

  makeTable() {
    const now = () => this.app.overview?.time_ms ?? Date.now();
    const columns = [
      { key: "id", label: "Stage", isHeader: true, sort: (s) => s.id, cell: (s) => String(s.id) },
      { key: "topic", label: "Topic", sort: (s) => s.topic, fill: (cell, s) => fillTopic(cell, s.topic) },
      { key: "writer", label: "Writer", sort: (s) => s.writer, fill: fillWriter },
      { key: "sequence", label: "Sequence", numeric: true, sort: (s) => s.sequence, cell: (s) => s.sequence },
      { key: "batches", label: "Batches", numeric: true, sort: (s) => s.batches, cell: (s) => count(s.batches) },
      { key: "bytes", label: "Size", numeric: true, sort: (s) => s.bytes, cell: (s) => bytes(s.bytes) },
      { key: "active", label: "Last active", sort: (s) => s.last_active_ms, cell: (s) => ago(s.last_active_ms, now()) },
      { key: "expires", label: "Expires in", sort: (s) => s.expires_ms, cell: (s) => (s.expires_ms === null ? "–" : duration((s.expires_ms - now()) / 1000)) },
    ];
    if (this.app.isAdmin) {
      columns.push({ key: "abort", label: "Abort", fill: (cell, s) => this.fillAbort(cell, s) });
    }
    return new Table({
      caption: "Open stages",
      // Ids begin anew with the data directory.
      key: ({ id, topic, writer, sequence }) => JSON.stringify([id, topic, writer, sequence]),
      sort: "id",
      empty: [
        el("p", { class: "empty-title", text: "No stages are open." }),
        el("p", { text: "Exactly-once writes from Spark, and StageWriter of the client, open them for as long as they write." }),
      ],
      columns,
    });
  }

  fillAbort(cell, stage) {
    if (cell.firstChild) return;
    const name = `Abort all stages of ${stage.writer}, sequence ${stage.sequence}`;
    cell.append(
      el("button", { type: "button", class: "danger small", "aria-label": name, text: "Abort…", onclick: () => abortStages(this.app, stage, () => this.reload()) }),
    );
  }

  update({ stages }) {
    this.table.update(stages);
    setText(this.counted, stages.length === 1 ? "1 open" : `${count(stages.length)} open`);
  }
}

function fillWriter(cell, stage) {
  if (!cell.firstChild) cell.append(quote(stage.writer, { class: "mono" }));
}

/** A link if the topic is one already: a stage may be for one that is yet to come. */
export function fillTopic(cell, name) {
  if (!cell.firstChild) cell.append(el("a", { href: topicLink(name) }, quote(name)));
}

// A record in the list: a row, and below it, once opened, the whole of it.

import { getBytes, topicPath } from "./api.js";
import { el, freshId } from "./dom.js";
import { bytes, count, moment, momentOfNs } from "./format.js";
import { cellBytes, modes, preview, render } from "./value.js";

const LABELS = { json: "JSON", text: "Text", hex: "Hex" };
// A browser gets slow with much more in one element; the rest is for the download.
const SHOWN_BYTES_MAX = 1024 * 1024;

export const COLUMNS = ["", "Offset", "Record", "Time", "Type", "Key", "Value", "Size"];

/** Which time a record has: its own, else that of its append. */
function recordTime(record) {
  return record.time_ns === null ? moment(record.append_ms) : momentOfNs(record.time_ns);
}

function size(record) {
  return bytes((record.key?.size ?? 0) + (record.value?.size ?? 0));
}

/** A cell of the row; its label is what is before it on narrow screens. */
function cell(at, properties, ...children) {
  return el("td", { role: "cell", data: { label: COLUMNS[at] }, ...properties }, ...children);
}

export class RecordRow {
  constructor(topic, record, onError) {
    this.topic = topic;
    this.record = record;
    this.onError = onError;
    this.detailId = freshId("record");
    this.button = el("button", {
      type: "button",
      class: "expand",
      "aria-expanded": "false",
      "aria-controls": this.detailId,
      "aria-label": `Record at offset ${record.offset}`,
      onclick: () => this.toggle(),
    });
    const value = record.value === null ? el("em", { class: "muted", text: "null" }) : el("bdi", { text: preview(record.value) });
    const key = record.key === null ? el("span", { class: "muted", text: "–" }) : el("bdi", { text: preview(record.key) });
    this.row = el(
      "tr",
      { role: "row", class: "record" },
      cell(0, { class: "expand-cell" }, this.button),
      cell(1, { class: "numeric" }, count(record.offset)),
      cell(2, { class: "numeric" }, count(record.record)),
      cell(3, { class: "time" }, recordTime(record)),
      cell(4, {}, record.type_name),
      cell(5, { class: "mono key" }, key),
      cell(6, { class: "mono value" }, value),
      cell(7, { class: "numeric" }, size(record)),
    );
    this.detail = el("tr", { role: "row", class: "detail", id: this.detailId, hidden: true });
    this.nodes = [this.row, this.detail];
  }

  toggle() {
    const isOpen = this.button.getAttribute("aria-expanded") === "true";
    this.button.setAttribute("aria-expanded", String(!isOpen));
    if (!this.detail.firstChild) this.detail.append(this.makeDetail());
    this.detail.hidden = isOpen;
  }

  makeDetail() {
    const { record } = this;
    const facts = [
      ["Offset", count(record.offset)],
      ["Next offset", count(record.next_offset)],
      ["Type", `${record.type_name} (0x${record.type.toString(16).padStart(2, "0")})`],
      ["Appended", moment(record.append_ms)],
    ];
    if (record.time_ns !== null) facts.push(["Timestamp", `${momentOfNs(record.time_ns)} (${record.time_ns} ns)`]);
    const list = el("dl", { class: "facts small" }, facts.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
    const parts = [];
    if (record.key !== null) parts.push(new CellBlock("Key", record.key, null, this.onError).node);
    if (record.value === null) parts.push(el("p", { class: "muted", text: "This is a Null record: it has no value." }));
    else parts.push(new CellBlock("Value", record.value, this.valuePath(), this.onError).node);
    return el("td", { role: "cell", colspan: COLUMNS.length }, el("div", { class: "detail-box" }, list, parts));
  }

  valuePath() {
    return topicPath(this.topic, `/records/${this.record.offset}/value`);
  }
}

/** A key or value with the choice of how it is shown. */
class CellBlock {
  constructor(label, cell, path, onError) {
    this.label = label;
    this.cell = cell;
    this.path = path;
    this.onError = onError;
    this.content = { kind: cell.kind, text: cell.kind === "hex" ? null : cell.text, bytes: cellBytes(cell) };
    this.mode = modes(cell)[0];
    this.shown = el("pre", { tabindex: 0, dir: "ltr", "aria-label": label, class: "value-box" });
    this.note = el("p", { class: "muted", role: "status" });
    this.node = el("div", { class: "cell-block" }, this.makeHead(), this.shown, this.note);
    this.show();
    if (cell.truncated) this.setNote(`The beginning of ${bytes(cell.size)}.`);
  }

  makeHead() {
    const name = freshId("mode");
    const choices = modes(this.cell).map((mode) =>
      el(
        "label",
        { class: "choice" },
        el("input", { type: "radio", name, value: mode, checked: mode === this.mode, onchange: () => this.setMode(mode) }),
        LABELS[mode],
      ),
    );
    this.all = this.path && this.cell.truncated && this.cell.size <= SHOWN_BYTES_MAX
      ? el("button", { type: "button", class: "small", text: "Show all", onclick: () => this.showAll() })
      : null;
    const download = this.path ? el("a", { href: this.path, download: true, class: "button small", text: "Download" }) : null;
    return el(
      "div",
      { class: "cell-head" },
      el("h4", {}, this.label, " ", el("span", { class: "muted", text: bytes(this.cell.size) })),
      el("fieldset", { class: "choices" }, el("legend", { class: "sr", text: `${this.label} shown as` }), choices),
      el("span", { class: "grow" }),
      this.all,
      download,
    );
  }

  setMode(mode) {
    this.mode = mode;
    this.show();
  }

  setNote(text) {
    this.note.textContent = text;
  }

  show() {
    this.shown.textContent = render(this.mode, this.content);
  }

  async showAll() {
    this.all.disabled = true;
    try {
      const found = await getBytes(this.path);
      const text = this.cell.kind === "hex" ? null : new TextDecoder().decode(found);
      this.content = { kind: this.cell.kind, text, bytes: found };
      this.show();
      this.setNote("");
      this.all.hidden = true;
    } catch (error) {
      this.all.disabled = false;
      this.onError(error);
    }
  }
}

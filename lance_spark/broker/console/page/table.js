// A table whose rows are updated in place and that can be sorted, by mouse and keyboard.
//
// Columns: {key, label, numeric?, sort? (row -> value), cell (row -> text or node),
// hint?}. A cell that gives a text is changed only if the text does; one that makes
// nodes is given `fill(td, row)` in place of `cell`.
//
// On narrow screens rows become cards (style.css), which is why the roles are written
// out: a browser forgets them when `display` changes.

import { get } from "./api.js";
import { el, setAttribute, setText } from "./dom.js";

// More rows than anybody reads; the filter finds the rest.
const ROWS_MAX = 200;

export class Table {
  constructor({ caption, columns, key, sort, empty }) {
    this.columns = columns;
    this.key = key;
    this.sortBy = sort ?? null;
    this.ascending = true;
    this.rows = new Map();
    this.data = [];
    this.limit = ROWS_MAX;
    this.body = el("tbody", { role: "rowgroup" });
    this.heads = columns.map((column) => this.head(column));
    const head = el("tr", { role: "row" }, this.heads);
    this.table = el(
      "table",
      { role: "table", class: "cards" },
      el("caption", { class: "sr", text: caption }),
      el("thead", { role: "rowgroup" }, head),
      this.body,
    );
    this.more = el("button", {
      type: "button",
      class: "more",
      hidden: true,
      onclick: () => this.showMore(),
    });
    this.empty = el("div", { class: "empty", hidden: true }, empty ?? "Nothing here.");
    this.box = el("div", { class: "table-box" }, this.table);
    this.node = el("div", { class: "table" }, this.box, this.empty, this.more);
    this.markSort();
  }

  head(column) {
    const properties = {
      role: "columnheader",
      scope: "col",
      class: column.numeric ? "numeric" : null,
      title: column.hint,
    };
    if (!column.sort) return el("th", properties, column.label);
    const button = el(
      "button",
      { type: "button", class: "sort", onclick: () => this.sort(column.key) },
      column.label,
      el("span", { class: "arrow", "aria-hidden": "true" }),
    );
    return el("th", properties, button);
  }

  sort(key) {
    this.ascending = this.sortBy === key ? !this.ascending : true;
    this.sortBy = key;
    this.markSort();
    // Without rows there is nothing to sort, and the table may not have come yet: what
    // says that it is empty would take the place, and the focus, of this button.
    if (this.data.length > 0) this.update(this.data);
  }

  markSort() {
    this.columns.forEach((column, at) => {
      const way = this.ascending ? "ascending" : "descending";
      const sorted = column.key === this.sortBy ? way : "none";
      setAttribute(this.heads[at], "aria-sort", column.sort ? sorted : null);
    });
  }

  showMore() {
    this.limit += ROWS_MAX;
    this.update(this.data);
  }

  /** Show these rows, and no others. */
  update(data) {
    this.data = data;
    const shown = this.sorted(data).slice(0, this.limit);
    const seen = new Set(shown.map(this.key));
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    shown.forEach((item, at) => this.place(item, at));
    // A row that moves loses the focus that it had.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus();
    this.more.hidden = data.length <= this.limit;
    setText(this.more, `Show more (${data.length - shown.length} left)`);
    this.empty.hidden = data.length > 0;
    this.box.hidden = data.length === 0;
  }

  place(item, at) {
    const key = this.key(item);
    let row = this.rows.get(key);
    if (row === undefined) {
      row = el("tr", { role: "row" }, this.columns.map((column) => this.cell(column)));
      this.rows.set(key, row);
    }
    this.columns.forEach((column, index) => {
      const cell = row.children[index];
      if (column.fill) column.fill(cell, item);
      else setText(cell, column.cell(item));
    });
    if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
  }

  cell(column) {
    const name = column.isHeader ? "th" : "td";
    return el(name, {
      role: column.isHeader ? "rowheader" : "cell",
      scope: column.isHeader ? "row" : null,
      class: column.numeric ? "numeric" : null,
      data: { label: column.label },
    });
  }

  sorted(data) {
    const column = this.columns.find((one) => one.key === this.sortBy);
    if (!column) return data;
    const sign = this.ascending ? 1 : -1;
    return [...data].sort((a, b) => sign * compare(column.sort(a), column.sort(b)));
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
  return a < b ? -1 : 1;
}

/** A view that asks `path` for its rows, when it is entered and with each overview. */
export class PolledView {
  constructor(app, path) {
    this.app = app;
    this.path = path;
  }

  enter() {
    this.reload();
  }

  take() {
    this.reload();
  }

  async reload() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      this.update(await get(this.path));
    } catch (error) {
      if (error.status !== 0) this.app.fail(error);
    } finally {
      this.isLoading = false;
    }
  }
}

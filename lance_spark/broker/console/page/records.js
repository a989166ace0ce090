// The records of a topic, a page at a time, searched, or followed as they come. Where
// it is is in the page's address, so that going back and bookmarks work.

import { get, topicLink, topicPath } from "./api.js";
import { el, freshId, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { COLUMNS, RecordRow } from "./record.js";

const SIZES = [20, 50, 100, 500];
const SIZE = 50;
// Rows that stay on the page while following; the oldest go.
const FOLLOWED_MAX = 500;
const FOLLOW_LIMIT = 500;

export class RecordsPanel {
  constructor(view) {
    this.view = view;
    this.where = { from: "end", limit: SIZE, key: "", search: "" };
    this.page = null;
    this.isFollowing = false;
    this.isFetching = false;
    this.abort = new AbortController();
    this.body = el("tbody", { role: "rowgroup" });
    this.status = el("p", { class: "muted records-status", role: "status" });
    this.empty = el("div", { class: "empty", hidden: true });
    this.box = el("div", { class: "table-box records-box" }, this.makeTable());
    this.node = el(
      "section",
      { class: "panel", "aria-labelledby": "records-title" },
      el("div", { class: "panel-head" }, el("h2", { id: "records-title", text: "Records" }), this.makePager()),
      this.makeForm(),
      this.status,
      this.box,
      this.empty,
    );
  }

  makeTable() {
    const heads = COLUMNS.map((label, at) =>
      el("th", { role: "columnheader", scope: "col", class: [1, 2, 7].includes(at) ? "numeric" : null }, label || el("span", { class: "sr", text: "Open" })),
    );
    return el(
      "table",
      { role: "table", class: "cards records" },
      el("caption", { class: "sr", text: "Records" }),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)),
      this.body,
    );
  }

  makePager() {
    const button = (text, onclick, more = {}) => el("button", { type: "button", text, onclick, ...more });
    this.startButton = button("⇤ Start", () => this.go({ from: "start" }));
    this.previousButton = button("← Previous", () => this.previous());
    this.nextButton = button("Next →", () => this.next());
    this.endButton = button("End ⇥", () => this.go({ from: "end" }));
    this.followButton = button("Follow", () => this.toggleFollow(), { "aria-pressed": "false", class: "follow" });
    return el("div", { class: "pager" }, this.startButton, this.previousButton, this.nextButton, this.endButton, this.followButton);
  }

  makeForm() {
    const field = (label, input) => el("div", { class: "field" }, el("label", { for: input.id, text: label }), input);
    const input = (properties) => el("input", { id: freshId("field"), autocomplete: "off", spellcheck: "false", ...properties });
    this.kind = el("select", { id: freshId("field"), onchange: () => this.showKind() },
      [["offset", "Offset"], ["record", "Record number"], ["time", "Time"]].map(([value, text]) => el("option", { value, text })));
    this.at = input({ type: "number", min: "0", step: "1", placeholder: "0" });
    this.time = input({ type: "datetime-local", step: "1", hidden: true, "aria-label": "Time" });
    this.key = input({ type: "search", placeholder: "the whole key" });
    this.search = input({ type: "search", placeholder: "part of key or value" });
    this.size = el("select", { id: freshId("field"), onchange: () => this.go({ limit: Number(this.size.value) }) },
      SIZES.map((size) => el("option", { value: size, selected: size === SIZE, text: String(size) })));
    const jump = el("form", { class: "inline", onsubmit: (event) => this.jump(event) },
      field("Jump to", this.kind), el("div", { class: "field" }, el("label", { for: this.at.id, class: "sr", text: "Offset or record number" }), this.at, this.time),
      el("button", { type: "submit", text: "Go" }));
    const find = el("form", { class: "inline", role: "search", onsubmit: (event) => this.find(event) },
      field("Key", this.key), field("Text", this.search),
      el("button", { type: "submit", text: "Search" }), el("button", { type: "button", text: "Clear", onclick: () => this.clear() }));
    return el("div", { class: "controls" }, jump, find, el("div", { class: "inline" }, field("Page size", this.size)));
  }

  showKind() {
    const isTime = this.kind.value === "time";
    this.at.hidden = isTime;
    this.time.hidden = !isTime;
  }

  // Where to look.

  jump(event) {
    event.preventDefault();
    const kind = this.kind.value;
    if (kind === "time") {
      const ms = new Date(this.time.value).getTime();
      if (Number.isNaN(ms)) {
        this.time.focus();
        return;
      }
      this.go({ from: `time:${ms}` });
      return;
    }
    if (!/^\d+$/.test(this.at.value)) {
      this.at.focus();
      return;
    }
    this.go({ from: `${kind}:${this.at.value}` });
  }

  find(event) {
    event.preventDefault();
    const key = this.key.value;
    const search = this.search.value;
    if (!key && !search) {
      this.clear();
      return;
    }
    // A search goes forward, so that from the end it would find nothing.
    this.go({ key, search, from: "start" });
  }

  clear() {
    this.go({ key: "", search: "", from: "end" });
  }

  /** Go somewhere: a change of the address, which brings it here again. */
  go(change) {
    this.setFollowing(false);
    const where = { ...this.where, ...change };
    const query = {
      from: where.from,
      limit: where.limit === SIZE ? "" : where.limit,
      key: where.key,
      search: where.search,
    };
    const link = topicLink(this.view.name, query);
    if (location.hash === link) this.load();
    else location.hash = link;
  }

  navigate(parameters) {
    const limit = Number(parameters.get("limit") ?? SIZE);
    this.where = {
      from: parameters.get("from") || "end",
      limit: SIZES.includes(limit) ? limit : SIZE,
      key: parameters.get("key") ?? "",
      search: parameters.get("search") ?? "",
    };
    this.key.value = this.where.key;
    this.search.value = this.where.search;
    this.size.value = String(this.where.limit);
    this.load();
  }

  next() {
    if (this.page && !this.nextButton.disabled) this.go({ from: `offset:${this.page.next_offset}` });
  }

  previous() {
    if (this.page && !this.previousButton.disabled) this.go({ from: `offset:${this.page.previous_offset}` });
  }

  focusSearch() {
    this.search.focus();
  }

  // Asking and showing.

  path({ from, limit, key, search }) {
    const query = new URLSearchParams({ from, limit });
    if (key) query.set("key", key);
    if (search) query.set("search", search);
    return topicPath(this.view.name, `/records?${query}`);
  }

  forget() {
    this.page = null;
    this.body.replaceChildren();
  }

  reload() {
    if (this.page === null && !this.isFetching) this.load();
  }

  async load() {
    this.abort.abort();
    const abort = new AbortController();
    this.abort = abort;
    this.isFetching = true;
    setText(this.status, "Loading …");
    try {
      const page = await get(this.path(this.where), abort.signal);
      if (abort.signal.aborted) return;
      this.show(page);
    } catch (error) {
      if (abort.signal.aborted) return;
      setText(this.status, "");
      this.view.fail(error);
    } finally {
      if (this.abort === abort) this.isFetching = false;
    }
  }

  show(page) {
    this.page = page;
    const rows = page.records.map((record) => this.makeRow(record));
    this.body.replaceChildren(...rows);
    this.box.hidden = !rows.length;
    this.box.scrollTop = 0;
    this.showEmpty(!rows.length);
    this.describe(page);
    this.enable();
  }

  makeRow(record) {
    const row = new RecordRow(this.view.name, record, (error) => this.view.fail(error));
    const fragment = document.createDocumentFragment();
    fragment.append(...row.nodes);
    return fragment;
  }

  get isSearching() {
    return Boolean(this.where.key || this.where.search);
  }

  describe(page) {
    const shown = page.records.length;
    const what = shown === 1 ? "1 record" : `${count(shown)} records`;
    if (this.isFollowing) {
      setText(this.status, `Following: ${what} shown, new ones are added at the end.`);
    } else if (this.isSearching) {
      const how = page.scanned_all ? "searched to the end" : `searched ${bytes(page.scanned_bytes)}, Next goes on`;
      setText(this.status, `${what} found, ${how}.`);
    } else if (shown) {
      const first = page.records[0];
      setText(this.status, `${what} from offset ${count(first.offset)} to ${count(page.next_offset)}; the log is ${count(page.log_start)} to ${count(page.log_end)}.`);
    } else {
      setText(this.status, "");
    }
  }

  showEmpty(isEmpty) {
    this.empty.hidden = !isEmpty;
    if (!isEmpty) return;
    const { page } = this;
    let text = "There are no records from here on.";
    if (page.log_start === page.log_end) text = "This topic is empty. Records show up here as soon as they are written: press Follow.";
    else if (this.isSearching) text = page.scanned_all ? "Nothing found." : "Nothing found yet: press Next to search further.";
    this.empty.replaceChildren(el("p", { class: "empty-title", text }));
  }

  enable() {
    const { page } = this;
    const isLast = this.isSearching ? page.scanned_all && page.records.length < this.where.limit : page.at_end;
    this.nextButton.disabled = this.isFollowing || isLast;
    this.previousButton.disabled = this.isFollowing || page.previous_offset === null;
  }

  // Following.

  toggleFollow() {
    if (this.isFollowing) {
      this.setFollowing(false);
      this.describe(this.page);
      this.enable();
      return;
    }
    this.where = { ...this.where, from: "end", key: "", search: "" };
    this.key.value = this.search.value = "";
    this.setFollowing(true);
    // The newest rows are at the lower end of the box, which has to be on the screen.
    this.box.hidden = false;
    this.node.scrollIntoView({ block: "start" });
    this.load().then(() => this.scrollToEnd());
  }

  setFollowing(isFollowing) {
    this.isFollowing = isFollowing;
    this.followButton.setAttribute("aria-pressed", String(isFollowing));
    setText(this.followButton, isFollowing ? "Stop following" : "Follow");
    this.box.classList.toggle("following", isFollowing);
  }

  /** Learn what the topic is now: while following, get what is new. */
  take(topic) {
    if (this.page === null) return;
    if (this.isFollowing) {
      if (topic.log_end > this.page.next_offset) this.fetchNew();
      return;
    }
    const grew = topic.log_end > this.page.log_end;
    const atEnd = this.page.at_end && !this.isSearching;
    if (grew && atEnd) this.page.at_end = false;
    if (grew) this.enable();
    // An empty topic has got its first records.
    if (grew && !this.page.records.length && !this.isSearching) this.load();
  }

  async fetchNew() {
    if (this.isFetching) return;
    this.isFetching = true;
    const { signal } = this.abort;
    try {
      const from = `offset:${this.page.next_offset}`;
      const found = await get(this.path({ from, limit: FOLLOW_LIMIT, key: "", search: "" }), signal);
      if (!this.isFollowing || signal.aborted) return;
      // Far behind: what comes in is more than anybody reads.
      const page = found.at_end ? found : await get(this.path({ from: "end", limit: FOLLOW_LIMIT, key: "", search: "" }), signal);
      if (this.isFollowing && !signal.aborted) this.append(page, found.at_end);
    } catch (error) {
      if (!signal.aborted) this.view.fail(error);
    } finally {
      this.isFetching = false;
    }
  }

  append(page, isGapless) {
    const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    if (!isGapless) this.body.replaceChildren();
    const old = isGapless ? this.page.records : [];
    const records = [...old, ...page.records].slice(-FOLLOWED_MAX);
    this.body.append(...page.records.map((record) => this.makeRow(record)));
    // Each record is two rows: itself and what opens below it.
    while (this.body.children.length > 2 * FOLLOWED_MAX) this.body.firstChild.remove();
    this.page = { ...page, records };
    this.box.hidden = !records.length;
    this.showEmpty(!records.length);
    this.describe(this.page);
    if (isAtEnd) this.scrollToEnd();
  }

  scrollToEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  leave() {
    this.abort.abort();
  }
}

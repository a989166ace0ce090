// Changes of the broker. Only visitors that may see them; the broker refuses others.

import { change, topicPath } from "./api.js";
import { el, freshId, quote } from "./dom.js";
import { showDone } from "./message.js";

const AGES = [["minutes", 60], ["hours", 3600], ["days", 86400]];
const SIZES = [["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];

/** Open a dialog; `submit` may throw, and the dialog stays with the text of the error. */
function ask({ title, body, action, isDanger, submit }) {
  const said = el("p", { class: "dialog-error", role: "alert" });
  const button = el("button", { type: "submit", class: isDanger ? "danger" : "primary", text: action });
  const cancel = el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
  const heading = el("h2", { id: freshId("dialog"), text: title });
  const form = el("form", { novalidate: true }, heading, body, said, el("div", { class: "actions" }, cancel, button));
  const dialog = el("dialog", { "aria-labelledby": heading.id }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    said.textContent = "";
    try {
      await submit();
      dialog.close();
    } catch (error) {
      said.textContent = [error.message, error.remedy].filter(Boolean).join(" ");
    } finally {
      button.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, button };
}

/** A number with a unit; empty is no limit. */
class Amount {
  constructor(label, units, value) {
    const found = [...units].reverse().find(([, size]) => value && value % size === 0) ?? units[1];
    const id = freshId("amount");
    this.label = label;
    // A number of bytes or seconds need not be a whole number of any unit here.
    const shown = value ? String(Number((value / found[1]).toPrecision(6))) : "";
    this.exact = { shown, unit: String(found[1]), value: value || null };
    this.input = el("input", { id, type: "number", min: "0", step: "any", value: shown, placeholder: "no limit" });
    this.unit = el("select", { "aria-label": `unit of ${label.toLowerCase()}` }, units.map(([name, size]) => el("option", { value: size, selected: size === found[1], text: name })));
    this.node = el("div", { class: "field" }, el("label", { for: id, text: label }), el("div", { class: "amount" }, this.input, this.unit));
  }

  read() {
    if (this.input.validity.badInput) throw new Error(`${this.label}: this is not a number.`);
    const text = this.input.value.trim();
    if (text === "") return null;
    if (text === this.exact.shown && this.unit.value === this.exact.unit) return this.exact.value;
    const value = Math.round(Number(text) * Number(this.unit.value));
    if (!(value > 0)) throw new Error(`${this.label}: give a number above 0, or nothing for no limit.`);
    return value;
  }
}

function amounts(retention) {
  return {
    age: new Amount("Keep for at most", AGES, retention?.max_age_s),
    size: new Amount("Keep at most", SIZES, retention?.max_bytes),
  };
}

export function createTopic(app) {
  const id = freshId("name");
  const name = el("input", { id, type: "text", required: true, autocomplete: "off", spellcheck: "false" });
  const { age, size } = amounts(null);
  ask({
    title: "Create a topic",
    body: [el("div", { class: "field" }, el("label", { for: id, text: "Name" }), name), age.node, size.node],
    action: "Create",
    submit: async () => {
      if (!name.value) throw new Error("Give the topic a name.");
      await change("POST", "/api/topics", { name: name.value, max_age_s: age.read(), max_bytes: size.read() });
      showDone(`Topic ${name.value} is created.`);
    },
  });
  name.focus();
}

export function setRetention(topic, done) {
  const { age, size } = amounts(topic.retention);
  ask({
    title: "Retention",
    body: [
      el("p", {}, "Records that are older, or too many, are dropped from ", quote(topic.name), " for good."),
      age.node,
      size.node,
    ],
    action: "Set",
    submit: async () => {
      const path = topicPath(topic.name, "/retention");
      await change("PUT", path, { max_age_s: age.read(), max_bytes: size.read() });
      showDone(`The retention of ${topic.name} is set.`);
      done();
    },
  });
}

export function deleteTopic(topic) {
  const id = freshId("confirm");
  const name = el("input", { id, type: "text", autocomplete: "off", spellcheck: "false" });
  const where = topic.partitions > 1 ? ` in its ${topic.partitions} partitions` : "";
  const { button } = ask({
    title: "Delete this topic?",
    body: [
      el("p", {}, "All records of ", quote(topic.name, { class: "strong" }), `${where} are deleted for good.`),
      el("div", { class: "field" }, el("label", { for: id, text: "Type the topic's name to confirm" }), name),
    ],
    action: "Delete",
    isDanger: true,
    submit: async () => {
      // Enter in the field sends the form, whatever the button says.
      if (name.value !== topic.name) throw new Error("This is not the topic's name.");
      await change("DELETE", topicPath(topic.name));
      location.hash = "#/";
      showDone(`Topic ${topic.name} is deleted.`);
    },
  });
  button.disabled = true;
  name.addEventListener("input", () => {
    button.disabled = name.value !== topic.name;
  });
  name.focus();
}

export function abortStages(app, stage, done) {
  ask({
    title: "Abort stages?",
    body: el("p", {}, "All open stages of writer ", quote(stage.writer, { class: "strong" }), `, sequence ${stage.sequence}, are dropped. A job that still writes them fails.`),
    action: "Abort",
    isDanger: true,
    submit: async () => {
      const { writer, sequence } = stage;
      const { dropped } = await change("POST", "/api/stages/abort", { writer, sequence });
      showDone(dropped === 1 ? "1 stage is dropped." : `${dropped} stages are dropped.`);
      done();
    },
  });
}

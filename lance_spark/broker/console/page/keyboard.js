// Single keys for those who like them. They can be turned off, as some people's input
// devices produce them by accident.

import { el } from "./dom.js";

const KEPT = "lance-keys";
const KEYS = [
  ["Tab, Shift+Tab", "go from one control to the next or the previous"],
  ["Enter, Space", "use the control: sort, open a record, follow a link"],
  ["/", "go to the filter or search box"],
  ["n, p", "next or previous page of records"],
  ["f", "follow a topic, or stop following"],
  ["Esc", "close a dialog"],
  ["?", "this list"],
];

function isOn() {
  try {
    return localStorage.getItem(KEPT) !== "off";
  } catch {
    return true;
  }
}

function setOn(on) {
  try {
    localStorage.setItem(KEPT, on ? "on" : "off");
  } catch {
    // It can't be kept, and stays as it was.
  }
}

/** Show which keys there are. */
export function showKeys() {
  const rows = KEYS.map(([keys, what]) => [el("dt", {}, el("kbd", { text: keys })), el("dd", { text: what })]);
  const box = el("input", {
    type: "checkbox",
    checked: isOn(),
    onchange: (event) => setOn(event.target.checked),
  });
  const dialog = el(
    "dialog",
    { "aria-label": "Keyboard" },
    el("h2", { text: "Keyboard" }),
    el("dl", { class: "keys" }, rows),
    el("label", { class: "check" }, box, " Single keys (/ n p f ?) are on"),
    el("form", { method: "dialog", class: "actions" }, el("button", { class: "primary", text: "Close" })),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function isTyping(target) {
  return target.closest("input, textarea, select, dialog") !== null;
}

/** Hand keys to the view that is shown: `focusFilter`, `next`, `previous`, `follow`. */
export function watchKeys(currentView) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !isOn()) return;
    if (isTyping(event.target)) return;
    const view = currentView();
    const actions = {
      "/": () => view?.focusFilter?.(),
      n: () => view?.next?.(),
      p: () => view?.previous?.(),
      f: () => view?.toggleFollow?.(),
      "?": showKeys,
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Messages to the visitor: what happened, and what can be done about it.

import { el, visible } from "./dom.js";

const MESSAGES_MAX = 5;

function box() {
  return document.getElementById("messages");
}

function show(kind, word, text, remedy) {
  const node = el("div", { class: `message ${kind}` });
  const close = el("button", {
    type: "button",
    class: "quiet",
    "aria-label": "Dismiss this message",
    text: "✕",
    onclick: () => {
      node.remove();
      document.getElementById("main").focus({ preventScroll: true });
    },
  });
  const said = el("p", {}, el("strong", { text: `${word}: ` }), el("bdi", { text: visible(text) }));
  const help = remedy ? el("p", { class: "remedy", text: visible(remedy) }) : null;
  node.append(el("div", {}, said, help), close);
  // The same thing said twice is said once.
  for (const old of [...box().children]) {
    if (old.textContent === node.textContent) old.remove();
  }
  while (box().children.length >= MESSAGES_MAX) box().firstChild.remove();
  box().append(node);
}

/** Show an error until it is dismissed. */
export function showError(error) {
  if (error.name === "AbortError") return; // The visitor has gone on.
  show("error", "Error", error.message, error.remedy);
}

export function showDone(text) {
  show("done", "Done", text, "");
}

export function clearMessages() {
  box().replaceChildren();
}

// Making and changing elements. Text goes in as text only: what a topic holds is
// hostile input, and nothing here can turn it into markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. `properties` are attributes, except `class`, `text`, `data` (an
 * object) and `on…` (listeners); null, undefined and false leave one out.
 */
export function el(name, properties = {}, ...children) {
  return build(document.createElement(name), properties, children);
}

export function svg(name, properties = {}, ...children) {
  return build(document.createElementNS(SVG, name), properties, children);
}

function build(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key === "class") node.setAttribute("class", value);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Change a text only if it differs: screen readers and selections stay in peace. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Characters that are not seen, or that turn round what follows them.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Write characters that can't be seen as their code, so that no name can lie. */
export function visible(text) {
  return text.replace(UNSEEN, (c) => {
    const code = c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟨U+${code}⟩`;
  });
}

/** Text of others, which keeps its direction to itself. */
export function quote(text, properties = {}) {
  return el("bdi", { ...properties, text: visible(text) });
}

let count = 0;

/** Give an id that nothing else on the page has. */
export function freshId(stem) {
  count += 1;
  return `${stem}-${count}`;
}

// Keys and values as the broker decoded them: a line of preview, and the whole as
// indented JSON, text or a hex dump.

import { visible } from "./dom.js";

const HEX_BYTES_MAX = 64 * 1024;
const INDENT = "  ";
const DEPTH_MAX = 40;
// A string (its end may be cut off), a mark, or a number or word.
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"?|[[\]{}:,]|[^\s"[\]{}:,]+/gs;

/** One line that stands for a cell in a table. */
export function preview(cell) {
  if (cell === null) return "";
  const text = cell.kind === "hex" ? spaced(cell.text.slice(0, 120)) : cell.text.slice(0, 300);
  return visible(text.replace(/\s+/g, " "));
}

function spaced(hex) {
  return hex.replace(/\s/g, "").replace(/(..)(?=.)/g, "$1 ");
}

/** The bytes of a cell, as far as it holds them. */
export function cellBytes(cell) {
  if (cell.kind !== "hex") return new TextEncoder().encode(cell.text);
  const digits = cell.text.replace(/[^0-9a-f]/gi, "");
  const found = new Uint8Array(digits.length >> 1);
  for (let at = 0; at < found.length; at += 1) {
    found[at] = Number.parseInt(digits.slice(at * 2, at * 2 + 2), 16);
  }
  return found;
}

/**
 * Indent JSON without reading it: numbers stay as they are written (a browser would
 * round them) and a text that is cut off is shown as far as it goes.
 */
export function indentJson(text) {
  const out = [];
  let depth = 0;
  let last = "";
  // Deeper levels stay where they are: a million brackets are not worth their indents.
  const line = () => `\n${INDENT.repeat(Math.min(depth, DEPTH_MAX))}`;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "}" || token === "]") {
      depth = Math.max(0, depth - 1);
      if (last !== "{" && last !== "[") out.push(line());
    } else if (last === "{" || last === "[" || last === ",") {
      out.push(line());
    }
    out.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    last = token;
  }
  return out.join("");
}

/** Sixteen bytes to a line: offset, hex, and what can be printed. */
export function hexDump(bytes) {
  const lines = [];
  const end = Math.min(bytes.length, HEX_BYTES_MAX);
  for (let at = 0; at < end; at += 16) {
    const row = [...bytes.subarray(at, Math.min(at + 16, end))];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  if (end < bytes.length) lines.push(`… ${bytes.length - end} more bytes: download the value`);
  return lines.join("\n");
}

/** Which ways of showing a cell there are, the best one first. */
export function modes({ kind, text }) {
  if (kind === "json") return ["json", "text", "hex"];
  if (kind === "hex") return ["hex", "text"];
  // The broker does not look through large values for whether they are JSON.
  return /^\s*[{[]/.test(text) ? ["text", "json", "hex"] : ["text", "hex"];
}

/** Show bytes or what is known of them in one of the ways. */
export function render(mode, { kind, text, bytes }) {
  if (mode === "hex") return hexDump(bytes);
  const shown = kind === "hex" || text === null ? new TextDecoder().decode(bytes) : text;
  return visible(mode === "json" ? indentJson(shown) : shown);
}

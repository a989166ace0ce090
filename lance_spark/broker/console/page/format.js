// Numbers, sizes, times and durations as people read them.

const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DASH = "–";

export function count(value) {
  return value === null || value === undefined ? DASH : WHOLE.format(value);
}

/** A rate: with a digit behind the point where it is small. */
export function rate(value) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  if (value < 10) return value.toFixed(1);
  return value < 100_000 ? WHOLE.format(value) : `${short(value)}`;
}

/** A large number in few characters. */
export function short(value) {
  if (value < 10_000) return WHOLE.format(value);
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`;
  if (value < 1e9) return `${(value / 1e6).toFixed(1)}M`;
  return `${(value / 1e9).toFixed(1)}G`;
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  let unit = 0;
  let size = value;
  while (size >= 1023.95 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 99.95 ? 0 : 1;
  return `${size.toFixed(digits)} ${UNITS[unit]}`;
}

export function bytesRate(value) {
  return value === null || value === undefined ? DASH : `${bytes(value)}/s`;
}

/** A duration in its two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.max(0, Math.round(seconds));
  const found = [];
  for (const [unit, size] of parts) {
    const whole = Math.floor(left / size);
    left -= whole * size;
    if (whole) found.push(`${whole} ${unit}`);
    if (found.length === 2) break;
  }
  return found.length ? found.join(" ") : "0 s";
}

/** How long ago something was, as of the broker's clock. */
export function ago(ms, nowMs) {
  if (ms === null || ms === undefined) return "never";
  const seconds = (nowMs - ms) / 1000;
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400 * 2) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

/** A moment in the visitor's zone: 2026-11-16 13:19:38.123. */
export function moment(ms) {
  if (ms === null || ms === undefined) return DASH;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return DASH;
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${time}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** A moment given in ns, as a text because a number can't hold it. */
export function momentOfNs(text) {
  if (text === null || text === undefined) return DASH;
  const ns = BigInt(text);
  return moment(Number(ns / 1_000_000n));
}

export function retention({ max_age_s: age, max_bytes: size }) {
  const parts = [];
  if (age) parts.push(duration(age));
  if (size) parts.push(bytes(size));
  return parts.length ? parts.join(" or ") : "keeps all";
}

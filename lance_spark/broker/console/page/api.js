// Asking the broker. Whatever goes wrong becomes an ApiError with a text and a remedy.

const TIMEOUT_MS = 30_000;

export class ApiError extends Error {
  constructor({ status, kind, text, remedy }) {
    super(text);
    this.status = status;
    this.kind = kind;
    this.remedy = remedy || "";
  }

  /** Whether the visitor has to sign in (again). */
  get isSignedOut() {
    return this.status === 401;
  }
}

function lost(error) {
  const timedOut = error.name === "TimeoutError";
  return new ApiError({
    status: 0,
    kind: timedOut ? "Timeout" : "ConnectionLost",
    text: timedOut ? "The broker did not answer in time." : "The broker can't be reached.",
    remedy: "The page tries again by itself; see whether the broker runs.",
  });
}

async function fail(response) {
  let found = {};
  try {
    found = (await response.json()).error ?? {};
  } catch {
    // Not from the console itself: a proxy, say.
  }
  throw new ApiError({
    status: response.status,
    kind: found.kind ?? `HTTP ${response.status}`,
    text: found.text ?? `The broker answered with status ${response.status}.`,
    remedy: found.remedy,
  });
}

async function send(path, options = {}) {
  const signals = [AbortSignal.timeout(TIMEOUT_MS)];
  if (options.signal) signals.push(options.signal);
  let response;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      cache: "no-store",
      ...options,
      signal: AbortSignal.any(signals),
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw lost(error);
  }
  if (!response.ok) await fail(response);
  return response;
}

export async function get(path, signal) {
  return (await send(path, { signal })).json();
}

export async function getBytes(path, signal) {
  return new Uint8Array(await (await send(path, { signal })).arrayBuffer());
}

/** Change something. The header is one that another site's form can't send. */
export async function change(method, path, body) {
  const headers = { "X-Lance-Console": "1" };
  const options = { method, headers };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  return (await send(path, options)).json();
}

export function topicPath(name, rest = "") {
  return `/api/topics/${encodeURIComponent(name)}${rest}`;
}

export function partitionsLink(name) {
  return `#/partitions/${encodeURIComponent(name)}`;
}

export function topicLink(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null);
  const text = new URLSearchParams(given).toString();
  return `#/topics/${encodeURIComponent(name)}${text ? `?${text}` : ""}`;
}

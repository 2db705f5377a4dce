// Requests to the daemon that served the page, and to no other.

/** An answer that is an error (`status`, `code`, `text`), or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    [this.code] = message.split(/:| - /, 1);
  }

  /** Whether the daemon is there: it has answered, if only to refuse. */
  get isAnswer() {
    return this.status > 0 && this.status < 500;
  }
}

// The server's clock, as told by its first answer. Ages and times are of that clock: the browser's
// may be wrong by a day.
let serverStart = null;

/** Seconds of the server's clock; they never step. */
export const serverTime = () => (serverStart ?? Date.now() / 1000 - performance.now() / 1000) + performance.now() / 1000;

const TIMEOUT_MS = 30_000;

/**
 * Ask; resolves with the JSON or text of the answer, null for 304.
 * body: bytes, text, or an object that goes as JSON.
 */
export async function ask(method, url, { body, token, timeoutMs = TIMEOUT_MS } = {}) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  let payload = body;
  if (body !== undefined && typeof body !== "string" && !(body instanceof Uint8Array)) {
    headers["Content-Type"] = "application/json";
    payload = JSON.stringify(body);
  }
  let response;
  let text;
  try {
    response = await fetch(url, { method, headers, body: payload, cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(timeoutMs) });
    text = await response.text();
  } catch (error) {
    throw new ApiError(0, error.name === "TimeoutError" ? `No answer within ${timeoutMs / 1000} s` : "No connection to the daemon");
  }
  if (serverStart === null) {
    const date = Date.parse(response.headers.get("Date") ?? "") / 1000;
    const ours = Date.now() / 1000;
    // The header has whole seconds: a clock that is right that far is the better one.
    serverStart = (Math.abs(date - ours) > 2 ? date : ours) - performance.now() / 1000;
  }
  if (response.status === 304) return null;
  const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
  let value = text;
  if (isJson && text) {
    try {
      value = JSON.parse(text);
    } catch {
      throw new ApiError(502, "The answer is no JSON");
    }
  }
  if (!response.ok) throw new ApiError(response.status, (isJson && value?.message) || text || `HTTP ${response.status}`);
  return value;
}

/** A path with its query; members that are null, undefined or empty are left out. */
export function withQuery(path, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, value);
  }
  const text = search.toString().replaceAll("+", "%20");
  return text ? `${path}?${text}` : path;
}

/** Rows of an answer with columns, as objects. */
export function toObjects({ columns, rows }) {
  return rows.map((row) => {
    const found = {};
    for (let at = 0; at < columns.length; at++) found[columns[at]] = row[at];
    return found;
  });
}

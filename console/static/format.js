// Numbers, times and sizes as text. No DOM, no clock of its own.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const NONE = "–";

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 120431 -> "120,431" */
export function count(value) {
  return known(value) ? whole.format(value) : NONE;
}

/** A rate per second: one decimal below ten. */
export function rate(value) {
  if (!known(value)) return NONE;
  if (value > 0 && value < 0.05) return "< 0.1";
  return value < 10 ? tenths.format(value) : whole.format(value);
}

export function bytes(value) {
  if (!known(value)) return NONE;
  let size = value;
  for (const unit of ["B", "KB", "MB", "GB", "TB"]) {
    if (size < 1000 || unit === "TB") return `${size < 10 && unit !== "B" ? tenths.format(size) : whole.format(size)} ${unit}`;
    size /= 1000;
  }
}

/** Seconds as the largest unit that fits: "< 1 s", "14 min", "3 h", "12 d". */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 1) return "< 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${whole.format(seconds / 86400)} d`;
}

/** Nanoseconds of a latency. */
export function latency(ns) {
  if (!known(ns)) return NONE;
  if (ns < 1e6) return `${tenths.format(ns / 1e3)} µs`;
  if (ns < 1e9) return `${ns < 1e7 ? tenths.format(ns / 1e6) : whole.format(ns / 1e6)} ms`;
  return ns < 1e11 ? `${tenths.format(ns / 1e9)} s` : duration(ns / 1e9);
}

/** "1 topic", "3 topics" */
export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

const two = (number) => String(number).padStart(2, "0");

/** A time of day, with the date unless it is today's. */
export function time(ms, { utc = false, now = Date.now(), millis = false } = {}) {
  if (!known(ms)) return NONE;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return NONE;
  const get = (name, date = at) => date[`get${utc ? "UTC" : ""}${name}`]();
  const today = new Date(now);
  let text = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
  if (millis) text += `.${String(get("Milliseconds")).padStart(3, "0")}`;
  const isToday = ["FullYear", "Month", "Date"].every((name) => get(name) === get(name, today));
  if (!isToday) text = `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))} ${text}`;
  return utc ? `${text} UTC` : text;
}

/** How long a queue takes to empty at the present rates; the words of the table. */
export function timeToEmpty(waiting, inRate, outRate) {
  if (!waiting) return "empty";
  if (!known(inRate) || !known(outRate)) return NONE;
  return outRate > inRate ? duration(waiting / (outRate - inRate)) : "never";
}

const ESCAPES = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** Text that is safe to show on one line: control and direction characters as escapes, which every font has. */
export function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (character) => {
    const code = character.charCodeAt(0);
    return ESCAPES[character] ?? (code < 128 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`);
  });
}

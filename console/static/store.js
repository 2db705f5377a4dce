// What the page remembers: its settings, where it is, and when it asks again. No DOM of its own.

export const DEFAULTS = {
  theme: "system",
  refresh: 5,
  utc: false,
  shortcuts: true,
  roomy: false,
  columns: {},
};

// What else would have the page ask without a pause, or fail at each render.
const FITS = {
  theme: (value) => ["system", "light", "dark"].includes(value),
  refresh: (value) => [0, 2, 5, 10, 30].includes(value),
  columns: (value) => value !== null && typeof value === "object",
};

/** A storage of the browser ("localStorage"); one of this page alone where the browser refuses it. */
export function storageOf(name, scope = globalThis) {
  try {
    scope[name].getItem("");
    return scope[name];
  } catch {
    const items = new Map();
    return { getItem: (key) => items.get(key) ?? null, setItem: (key, value) => items.set(key, value), removeItem: (key) => items.delete(key) };
  }
}

/** The settings of this browser. */
export class Prefs {
  constructor(storage) {
    this.storage = storage;
    this.values = { ...DEFAULTS };
    try {
      const stored = Object.entries(JSON.parse(storage.getItem("nsq-console") ?? "{}") ?? {});
      Object.assign(this.values, Object.fromEntries(stored.filter(([name, value]) => FITS[name]?.(value) ?? typeof value === typeof DEFAULTS[name])));
    } catch {
      // Storage that is closed or holds something else: the defaults hold for this visit.
    }
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
    try {
      this.storage.setItem("nsq-console", JSON.stringify(this.values));
    } catch {
      // As above.
    }
  }
}

const PLACES = ["topics", "nodes", "clients", "dead-letters", "settings", "lookup", "counter"];
const isDots = (name) => name === "." || name === "..";

/** The page that an address names: {name, topic, channel, node, query}. `query` is a plain object. */
export function parseRoute(pathname, search, base) {
  const query = Object.fromEntries(new URLSearchParams(search));
  const rest = pathname.startsWith(base) ? pathname.slice(base.length) : pathname;
  let segments;
  try {
    segments = rest.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return { name: "unknown", query };
  }
  const [place, first, second, third, ...more] = segments;
  if (!place) return { name: "overview", query };
  if (!PLACES.includes(place) || more.length) return { name: "unknown", query };
  if (place === "topics") {
    // Browsers take `.` and `..` out of paths, so topics of these names are in the query.
    const topic = first ?? query.topic;
    const channel = second ?? query.channel;
    if (third !== undefined && third !== "messages") return { name: "unknown", query };
    if (topic === undefined) return { name: "topics", query };
    if (channel === undefined) return { name: "topic", topic, query };
    const name = third === "messages" || query.view === "messages" ? "messages" : "channel";
    return { name, topic, channel, query };
  }
  if (second !== undefined) return { name: "unknown", query };
  if (place === "nodes" && first !== undefined) return { name: "node", node: first, query };
  if (first !== undefined) return { name: "unknown", query };
  return { name: place, query };
}

/** The range of charts that an address names; the first one if it names none that there is. */
export const rangeOf = ({ query }) => (query.range === "1h" ? "1h" : "10m");

/** The address of a page; query members that are empty, null or false are left out. */
export function makeHref(base, name, { topic, channel, node, query = {} } = {}) {
  let path = "/";
  let values = { ...query };
  if (topic !== undefined) {
    if (isDots(topic) || (channel !== undefined && isDots(channel))) {
      path = "/topics";
      values = { topic, channel, view: name === "messages" ? "messages" : undefined, ...values };
    } else {
      path = ["/topics", topic, channel].filter((part) => part !== undefined).map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
      if (name === "messages") path += "/messages";
    }
  } else if (node !== undefined) {
    path = `/nodes/${encodeURIComponent(node).replaceAll("%3A", ":")}`;
  } else if (name !== "overview") {
    path = `/${name}`;
  }
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) search.set(key, value === true ? "1" : value);
  }
  const text = search.toString();
  return base + path + (text ? `?${text}` : "");
}

const BACKOFF_S = [5, 10, 20, 40, 60];
// The page asks at most a twentieth of the time: a slow answer stretches the interval.
const STRETCH = 20;

/**
 * Asks again and again: after the interval when all is well, later and later after errors, not at
 * all while the page is hidden. One question at a time.
 */
export class Poller {
  constructor({ ask, interval, isVisible, setTimer = (run, ms) => setTimeout(run, ms), clearTimer = (timer) => clearTimeout(timer), clock = () => performance.now() }) {
    this.ask = ask;
    this.interval = interval; // seconds; 0 is off
    this.isVisible = isVisible;
    this.setTimer = setTimer;
    this.clearTimer = clearTimer;
    this.clock = clock;
    this.timer = null;
    this.busy = null;
    this.failures = 0;
  }

  /** Ask at once; the same promise for whoever asks meanwhile. */
  now() {
    this.clearTimer(this.timer);
    this.busy ??= this.run();
    return this.busy;
  }

  async run() {
    const started = this.clock();
    try {
      await this.ask();
      this.failures = 0;
    } catch (error) {
      if (!error.isAnswer) this.failures += 1;
    }
    this.busy = null;
    this.schedule((this.clock() - started) / 1000);
  }

  schedule(tookS) {
    this.clearTimer(this.timer);
    const wait = this.wait(tookS);
    if (wait !== null) this.timer = this.setTimer(() => this.now(), wait * 1000);
  }

  /** Seconds until the next question; null for none. */
  wait(tookS) {
    if (!this.isVisible()) return null;
    if (this.failures) return BACKOFF_S[Math.min(this.failures, BACKOFF_S.length) - 1];
    const interval = this.interval();
    return interval ? Math.max(interval, Math.min(tookS * STRETCH, 60)) : null;
  }

  /** The page was hidden or shown. */
  visibilityChanged() {
    if (!this.isVisible()) this.clearTimer(this.timer);
    else this.now();
  }
}

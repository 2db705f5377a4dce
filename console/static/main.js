// The shell of the page: where it is, what it asks and when, what every page has around it.

import { html, nothing, render } from "./vendor/lit-html/lit-html.js";
import * as format from "./format.js";
import { Poller, Prefs, makeHref, parseRoute, storageOf } from "./store.js";
import { rowHeight, watchScroll } from "./table.js";
import * as queues from "./view_queues.js";
import { emptyState, openDialog } from "./widgets.js";

const meta = (name) => document.querySelector(`meta[name="nsq-${name}"]`).content;
const BASE = meta("base").replace(/\/$/, "");
const SECOND_ROUND_MS = 1500;
const NOTICE_MS = 8000;

// Pages by name; those that are not of the first load are fetched when they are opened.
const nodes = () => import("./view_nodes.js");
const messages = () => import("./view_messages.js");
const settings = () => import("./view_settings.js");
const VIEWS = {
  overview: async () => queues.overview,
  topics: async () => queues.topics,
  topic: async () => queues.topic,
  channel: async () => queues.channel,
  nodes: async () => (await nodes()).nodes,
  node: async () => (await nodes()).node,
  clients: async () => (await nodes()).clients,
  messages: async () => (await messages()).channelMessages,
  "dead-letters": async () => (await messages()).deadLetters,
  settings: async () => (await settings()).settings,
  lookup: async () => (await settings()).lookup,
  counter: async () => (await settings()).counter,
};
const NAVIGATION = [
  ["overview", "Overview", "o"],
  ["topics", "Topics", "t"],
  ["nodes", "Nodes", "n"],
  ["clients", "Clients", "c"],
  ["dead-letters", "Dead letters", "d"],
  ["settings", "Settings", "s"],
];
const LISTS = ["overview", "topics"];
const PARENTS = { topic: "topics", channel: "topics", messages: "topics", node: "nodes", lookup: "settings", counter: "overview" };

class App {
  constructor(source) {
    this.source = source;
    this.prefs = new Prefs(storageOf("localStorage"));
    this.route = parseRoute(location.pathname, location.search, BASE);
    this.view = null;
    this.data = null; // what the page's own question brought
    this.error = null; // why it brought nothing
    this.me = null;
    this.problem = null; // why the last round failed
    this.answeredAt = null;
    this.notices = [];
    this.marks = new Set();
    this.dialog = null;
    this.isMenuOpen = false;
    this.memory = new Map(); // what pages keep between rounds
    this.loadedAt = -Infinity;
    this.frame = null;
    this.poller = new Poller({
      ask: () => this.ask(),
      interval: () => this.prefs.get("refresh"),
      isVisible: () => document.visibilityState === "visible",
    });
  }

  get model() {
    return this.source.model;
  }

  get overview() {
    return this.source.overview;
  }

  can(right) {
    return Boolean(this.me?.rights.includes(right));
  }

  href(name, options) {
    return makeHref(BASE, name, options);
  }

  // Where the page is.

  go(href, { isReplacing = false, state = null } = {}) {
    if (isReplacing) history.replaceState(state, "", href);
    else history.pushState(state, "", href);
    this.arrive();
  }

  /** Change members of the address; while somebody types, the entry of the history is one. */
  setQuery(changes, { isTyping = false } = {}) {
    const query = { ...this.route.query, ...changes };
    for (const name of ["topic", "channel", "view"]) if (this.route[name] !== undefined) delete query[name];
    const isReplacing = isTyping && history.state?.isTyping;
    this.go(this.href(this.route.name, { ...this.route, query }), { isReplacing, state: isTyping ? { isTyping } : null });
  }

  arrive() {
    const before = this.route;
    this.route = parseRoute(location.pathname, location.search, BASE);
    const place = ({ name, topic, channel, node }) => JSON.stringify([name, topic, channel, node]);
    if (place(before) !== place(this.route)) this.enter();
    else {
      this.loadedAt = -Infinity;
      this.load();
    }
    this.invalidate();
  }

  async enter() {
    const { name } = this.route;
    this.view = null;
    this.data = null;
    this.error = null;
    this.marks = new Set();
    this.memory = new Map();
    this.loadedAt = -Infinity;
    this.isMenuOpen = false;
    scrollTo(0, 0);
    const find = VIEWS[name];
    let view = UNKNOWN;
    try {
      if (find) view = await find();
    } catch (error) {
      view = failedToLoad(error);
    }
    if (this.route.name !== name) return;
    this.view = view;
    this.invalidate();
    await this.load();
    document.querySelector("main h1")?.focus({ preventScroll: true });
  }

  // What it asks.

  async ask() {
    try {
      if (!this.me) this.me = await this.source.start();
      await this.source.poll();
      this.problem = null;
      this.answeredAt = performance.now();
    } catch (error) {
      if (error.status === 401) this.askToken();
      this.problem = error;
      throw error;
    } finally {
      this.invalidate();
    }
    await this.load();
  }

  /** Ask what this page alone shows; `every` bounds how often. */
  async load() {
    const { view, route } = this;
    const isList = LISTS.includes(route.name);
    if (!view || !this.overview || (isList && !view.load)) return;
    if (performance.now() - this.loadedAt < (view.every ?? 0) * 1000) return;
    this.loadedAt = performance.now();
    let data = null;
    let error = null;
    try {
      // What nodes lack decides what is offered on all pages but the lists.
      [data = null] = await Promise.all([view.load?.(this, route), isList ? null : this.source.nodes()]);
    } catch (caught) {
      error = caught;
      if (error.status === 401) this.askToken();
    }
    if (this.view !== view || this.route.name !== route.name || this.route.topic !== route.topic || this.route.channel !== route.channel || this.route.node !== route.node) return;
    this.error = error;
    // The last figures stay when a round fails; only a 4xx says that they are not there any more.
    if (data !== null || error?.isAnswer) this.data = data;
    this.invalidate();
  }

  async refresh() {
    this.loadedAt = -Infinity;
    await this.poller.now();
  }

  askToken() {
    if (!this.dialog) this.act("signIn");
  }

  /** Do what actions.js has under a name; it is fetched when somebody acts for the first time. */
  async act(name, ...parameters) {
    if (this.isFetching) return null; // the second click of a double click
    this.isFetching = true;
    let actions;
    try {
      actions = await import("./actions.js");
    } catch (error) {
      this.notify(`Not loaded: ${error.message}`, { kind: "bad" });
      return null;
    } finally {
      this.isFetching = false;
    }
    return actions[name](this, ...parameters);
  }

  // What it shows.

  notify(text, { kind = "", undo, label = "Undo" } = {}) {
    const notice = { text, kind, undo, label };
    this.notices = [...this.notices.slice(-3), notice];
    setTimeout(() => this.dismiss(notice), kind === "bad" ? NOTICE_MS * 2 : NOTICE_MS);
    this.invalidate();
  }

  dismiss(notice) {
    this.notices = this.notices.filter((each) => each !== notice);
    this.invalidate();
  }

  invalidate = () => {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.render();
    });
  };

  render() {
    const title = this.view?.title(this) ?? "";
    document.title = title ? `${title} · NSQ console` : "NSQ console";
    document.body.classList.toggle("roomy", this.prefs.get("roomy"));
    render(shell(this), document.getElementById("app"));
    this.dialog?.update();
  }

  setTheme(theme) {
    this.prefs.set("theme", theme);
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("nsq-theme"));
    this.invalidate();
  }
}

const UNKNOWN = {
  title: () => "Not found",
  render: (app) => html`<h1 tabindex="-1">No such page</h1>${emptyState("The console has no page at this address.", html`<a href=${app.href("overview")}>Back to the overview</a>`)}`,
};
const failedToLoad = (error) => ({
  title: () => "Not loaded",
  render: () => html`<h1 tabindex="-1">The page did not load</h1>${emptyState("The daemon did not send this part of the page.", html`<p class="soft">${error.message}</p>`, html`<button type="button" @click=${() => location.reload()}>Load again</button>`)}`,
});

function refreshState(app) {
  const interval = app.prefs.get("refresh");
  if (app.problem?.status === 401) return ["signed out", "warn"];
  if (app.answeredAt === null) return app.problem ? ["no answer", "bad"] : ["loading", ""];
  const age = Math.max(0, Math.round((performance.now() - app.source.updatedAt + (app.overview.round.age_ms ?? 0)) / 1000));
  if (app.problem) return [`stale · ${format.duration(age)}`, "bad"];
  if (!interval) return ["paused", "warn"];
  return [age < 2 ? "live" : `live · ${format.duration(age)} ago`, age > 3 * interval + 5 ? "warn" : "good"];
}

function topBar(app) {
  const here = PARENTS[app.route.name] ?? app.route.name;
  const [state, kind] = refreshState(app);
  const theme = app.prefs.get("theme");
  const next = { system: "dark", dark: "light", light: "system" }[theme] ?? "dark";
  const text = (app.memory.get("search") ?? "").toLowerCase();
  const suggestions = text ? [...app.model.topics.keys()].filter((name) => name.toLowerCase().includes(text)).slice(0, 12) : [];
  const search = (event) => {
    event.preventDefault();
    const value = new FormData(event.target).get("q").trim();
    const [topic, channel] = value.split("/");
    if (!value) return;
    if (channel && app.model.rows.has(value)) app.go(app.href("channel", { topic, channel }));
    else if (app.model.topics.has(value)) app.go(app.href("topic", { topic: value }));
    else app.go(app.href("topics", { query: { q: value } }));
    event.target.reset();
  };
  return html`<header class="top">
    <a class="skip" href="#main">Skip to the content</a>
    <a class="brand" href=${app.href("overview")}><img src="${meta("root")}/icon.svg" alt="" width="20" height="20" /> NSQ<span class="where">${app.source.mode === "node" ? app.source.node ?? "" : "cluster"}</span></a>
    <button type="button" class="menu-button" aria-expanded=${app.isMenuOpen ? "true" : "false"} aria-controls="nav" @click=${() => {
      app.isMenuOpen = !app.isMenuOpen;
      app.invalidate();
    }}>Menu</button>
    <nav id="nav" class=${app.isMenuOpen ? "open" : ""} aria-label="pages">
      ${NAVIGATION.map(([name, label]) => html`<a href=${app.href(name)} aria-current=${here === name ? "page" : nothing}>${label}</a>`)}
    </nav>
    <form class="search" role="search" @submit=${search}><input id="search" name="q" type="search" autocomplete="off" spellcheck="false" list="names" placeholder="Find  /" aria-label="find a topic or topic/channel" @input=${(event) => {
      app.memory.set("search", event.target.value);
      app.invalidate();
    }} /><datalist id="names">${suggestions.map((name) => html`<option value=${name}></option>`)}</datalist></form>
    <span class="state ${kind}" id="state">${state}</span>
    <select id="interval" aria-label="refresh every" title="refresh every" @change=${(event) => {
      app.prefs.set("refresh", Number(event.target.value));
      app.refresh();
    }}>${[2, 5, 10, 30, 0].map((seconds) => html`<option value=${seconds} ?selected=${app.prefs.get("refresh") === seconds}>${seconds ? `${seconds} s` : "off"}</option>`)}</select>
    <button type="button" id="theme" title="theme: ${theme}; next: ${next}" aria-label="theme: ${theme}" @click=${() => app.setTheme(next)}>${{ system: "◐", dark: "●", light: "○" }[theme] ?? "◐"}</button>
    ${app.me?.user || (app.me && app.me.role !== "admin") ? html`<span class="who" title="${app.me.user ?? ""} ${app.me.role}: your role decides what you may do">${[app.me.role, app.me.user].filter(Boolean).join(" · ")}</span>` : nothing}
  </header>`;
}

function banner(app) {
  const error = app.problem;
  if (!error || error.status === 401) return nothing;
  const wait = app.poller.failures ? "It is asked again by itself, less and less often." : "";
  const last = app.answeredAt === null ? "" : ` The figures are ${format.duration((performance.now() - app.answeredAt) / 1000)} old.`;
  return html`<div class="banner" role="alert"><span>${error.message}.${last} ${wait}</span> <button type="button" @click=${() => app.refresh()}>Ask now</button></div>`;
}

function content(app) {
  if (app.view && (app.overview || app.view.isStatic)) return app.view.render(app, app.data, app.error);
  if (app.problem?.status === 401) return html`<h1 tabindex="-1">Signed out</h1>${emptyState("The figures are for those who have a token.", html`<p><button type="button" class="primary" @click=${() => app.askToken()}>Sign in</button></p>`)}`;
  if (app.problem) return html`<h1 tabindex="-1">No figures yet</h1>${emptyState("The daemon has not answered.", app.problem.message)}`;
  return html`<h1 tabindex="-1" class="loading">Loading</h1>`;
}

const shell = (app) => html`${topBar(app)}${banner(app)}
  <main id="main" class=${app.problem ? "stale" : ""}>${content(app)}</main>
  <div class="notices" role="status" aria-live="polite">${app.notices.map(
    (notice) => html`<div class="notice ${notice.kind}"><span>${notice.text}</span>${notice.undo
      ? html`<button type="button" @click=${() => {
          app.dismiss(notice);
          notice.undo();
        }}>${notice.label}</button>`
      : nothing}<button type="button" class="close" aria-label="dismiss" @click=${() => app.dismiss(notice)}>×</button></div>`,
  )}</div>`;

// Keys.

const KEYS = [
  ["/", "search"],
  ["g o, g t, g n, g c, g d, g s", "overview, topics, nodes, clients, dead letters, settings"],
  ["j, k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "mark the row"],
  ["p", "pause or unpause the marked rows, or this page's queue"],
  ["r", "refresh now"],
  ["?", "this help"],
  ["Esc", "close"],
];

function showKeys(app) {
  openDialog(app, "Keys", () => html`<dl class="keys">${KEYS.map(([keys, text]) => html`<dt>${keys.split(", ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${text}</dd>`)}</dl>
    <p class="soft">They can be turned off in the settings.</p>`);
}

function moveRow(app, step) {
  const rows = [...document.querySelectorAll("main table tr[data-key]")];
  const now = rows.indexOf(document.activeElement?.closest("tr[data-key]"));
  const row = rows[now + step] ?? (now < 0 ? rows[0] : null);
  const link = row?.querySelector("a, input, button");
  if (!link) return;
  link.focus({ preventScroll: true });
  const box = row.getBoundingClientRect();
  const margin = rowHeight(app.prefs) * 3;
  if (box.bottom > innerHeight - margin) scrollBy(0, box.bottom - innerHeight + margin);
  else if (box.top < margin + 60) scrollBy(0, box.top - margin - 60);
}

function onKey(app, event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || app.dialog || !app.prefs.get("shortcuts")) return;
  const { target, key } = event;
  if (target.closest?.("textarea, select, input:not([type=checkbox]), [contenteditable]")) {
    if (key === "Escape") target.blur();
    return;
  }
  const isSecond = app.gAt && performance.now() - app.gAt < 1500;
  app.gAt = 0;
  const page = isSecond && NAVIGATION.find(([, , letter]) => letter === key);
  const row = document.activeElement?.closest("tr[data-key]");
  const run = page
    ? () => app.go(app.href(page[0]))
    : {
        "/": () => document.getElementById("search").focus(),
        g: () => (app.gAt = performance.now()),
        j: () => moveRow(app, 1),
        k: () => moveRow(app, -1),
        x: () => row?.querySelector("td.mark input")?.click(),
        p: () => app.view?.onPause?.(app, row?.dataset.key),
        r: () => app.refresh(),
        "?": () => showKeys(app),
        Escape: () => {
          app.isMenuOpen = false;
          app.invalidate();
        },
      }[key];
  if (run) {
    event.preventDefault();
    run();
  }
}

function onClick(app, event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.download) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !`${url.pathname}/`.startsWith(`${BASE}/`) || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  app.go(url.pathname + url.search);
}

async function boot() {
  const mode = meta("mode");
  const source = mode === "node" ? new (await import("./source_node.js")).NodeSource() : new (await import("./source_cluster.js")).ClusterSource(BASE);
  const app = new App(source);
  addEventListener("popstate", () => app.arrive());
  addEventListener("keydown", (event) => onKey(app, event));
  document.addEventListener("click", (event) => onClick(app, event));
  document.addEventListener("visibilitychange", () => app.poller.visibilityChanged());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("nsq-theme")));
  watchScroll(app.invalidate);
  setInterval(() => {
    if (document.visibilityState === "visible") app.invalidate();
  }, 1000);
  document.getElementById("app").replaceChildren();
  app.render();
  app.enter();
  await app.poller.now();
  // Rates need two rounds: the second comes soon, so that nobody waits for them.
  if (mode === "node" && app.prefs.get("refresh")) setTimeout(() => document.visibilityState === "visible" && app.refresh(), SECOND_ROUND_MS);
  document.documentElement.dataset.ready = "1";
}

boot();

// Settings of this browser, what nsqlookupd knows, the audit trail, versions; the wallboard.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import * as format from "./format.js";
import { table } from "./table.js";
import { badge, button, download, emptyState, tabs } from "./widgets.js";

const choose = (app, name, label, options) => html`<label>${label} <select id="set-${name}" @change=${(event) => {
  const value = options.find(([each]) => String(each) === event.target.value)[0];
  if (name === "theme") app.setTheme(value);
  else app.prefs.set(name, value);
  app.refresh();
}}>${options.map(([value, text]) => html`<option value=${value} ?selected=${app.prefs.get(name) === value}>${text}</option>`)}</select></label>`;

function browserTab(app) {
  return html`<div class="settings">
    ${choose(app, "theme", "Theme", [["system", "as the system"], ["light", "light"], ["dark", "dark"]])}
    ${choose(app, "refresh", "Refresh every", [[2, "2 s"], [5, "5 s"], [10, "10 s"], [30, "30 s"], [0, "off"]])}
    ${choose(app, "utc", "Times", [[false, "local"], [true, "UTC"]])}
    ${choose(app, "roomy", "Rows", [[false, "dense"], [true, "roomy"]])}
    ${choose(app, "shortcuts", "Keys", [[true, "on"], [false, "off"]])}
    ${app.me?.auth === "token" ? html`<p>${button("Sign out", async () => { await app.source.signOut(); app.notify("Signed out."); })}</p>` : nothing}
    <p class="soft">These are kept in this browser only. Press <kbd>?</kbd> for the keys.</p>
  </div>`;
}

const lookupdColumns = () => [
  { id: "address", label: "nsqlookupd", small: true, css: "name", value: (row) => row.address, cell: (row) => row.address },
  { id: "ok", label: "State", small: true, value: (row) => String(row.ok), cell: (row) => (row.ok ? html`<span class="health good">● OK</span>` : html`<span class="health bad">○ ${row.error}</span>`) },
  { id: "took", label: "Answer time", num: true, value: (row) => row.took_ms, cell: (row) => (row.took_ms === null || row.took_ms === undefined ? format.NONE : `${format.count(row.took_ms)} ms`) },
  { id: "nodes", label: "Nodes", num: true, small: true, value: (row) => row.node_count, cell: (row) => format.count(row.node_count) },
  { id: "topics", label: "Topics", num: true, small: true, value: (row) => row.topic_count, cell: (row) => format.count(row.topic_count) },
];

function lookupTab(app, data) {
  if (app.source.mode === "node") {
    return html`${emptyState("One node asks no nsqlookupd.", html`<p>nsqadmin shows a whole cluster: what each nsqlookupd knows, topics without a producer, and more.</p>`, html`<p>${button("Create topic…", () => actions.create(app))}</p>`)}`;
  }
  const inactive = Object.entries(data?.inactive ?? {}).map(([topic, channels]) => ({ topic, channels: channels ?? [] }));
  const columns = [
    { id: "topic", label: "Topic", small: true, css: "name", value: (row) => row.topic, cell: (row) => row.topic },
    { id: "channels", label: "Channels", small: true, cell: (row) => row.channels.join(", ") || format.NONE },
    { id: "act", label: "", css: "act", cell: (row) => (app.can("admin") ? button("Delete…", () => actions.lose(app, "delete", [{ topic: row.topic }])) : nothing) },
  ];
  return html`<h2>nsqlookupd</h2>
    ${table(app, { id: "lookupds", label: "nsqlookupd daemons", columns: lookupdColumns(), rows: app.overview.lookupds, keyOf: (row) => row.address, fallback: "address", empty: emptyState("nsqadmin was given nsqd addresses, so it asks no nsqlookupd.") })}
    <div class="bar"><h2>Topics without a producer</h2>${app.can("operate") ? button("Create topic…", () => actions.create(app)) : nothing}</div>
    <p class="soft">nsqlookupd knows them, and no nsqd has them. A topic that was just deleted may stay hidden for 45 s.</p>
    ${data?.inactiveError ? html`<p class="warning">${data.inactiveError.replace(/^UPSTREAM_ERROR: /, "")}</p>` : nothing}
    ${table(app, { id: "inactive", label: "topics without a producer", sortKey: "isort", columns, rows: inactive, keyOf: (row) => row.topic, fallback: "topic", empty: emptyState(data?.inactiveError ? "Not known." : "None.") })}`;
}

const targetOf = (entry) => [entry.topic, entry.channel].filter((part) => part !== undefined).join("/") || entry.node || (entry.target_count ? format.plural(entry.target_count, "target") : "");

function auditTab(app, data) {
  if (app.source.mode === "node") return emptyState("One nsqd keeps no audit trail.", html`<p>nsqadmin does: <code>--audit-log</code>.</p>`);
  if (!data?.audit) return html`<p class="soft">Loading…</p>`;
  const { q = "" } = app.route.query;
  const rows = data.audit.entries.filter((entry) => JSON.stringify([entry.user, entry.role, entry.action, targetOf(entry), entry.text, entry.from]).toLowerCase().includes(q.toLowerCase()));
  const columns = [
    { id: "time", label: "Time", small: true, css: "name", value: (row) => row.time_ms, cell: (row) => format.time(row.time_ms, { utc: app.prefs.get("utc") }) },
    { id: "user", label: "User", small: true, value: (row) => row.user, cell: (row) => html`${format.visible(row.user || "anybody")} <small class="soft">${row.role}</small>` },
    { id: "action", label: "Action", small: true, value: (row) => row.action, cell: (row) => row.action },
    { id: "target", label: "Target", small: true, value: targetOf, cell: (row) => format.visible(targetOf(row)) },
    { id: "outcome", label: "Outcome", small: true, value: (row) => row.outcome, cell: (row) => html`${badge(row.outcome, row.outcome === "done" ? "" : "bad", (row.outcomes ?? []).map((each) => `${each.node ?? ""}: ${each.text}`).join("\n"))} ${format.visible(row.text ?? "")}` },
    { id: "from", label: "From", value: (row) => row.from, cell: (row) => format.visible(row.from ?? "") },
  ];
  return html`<div class="bar"><input type="search" placeholder="Filter" aria-label="filter the audit trail" .value=${q} @input=${(event) => app.setQuery({ q: event.target.value }, { isTyping: true })} />
      ${button("Download", () => download("audit.ndjson", data.audit.entries.map((entry) => `${JSON.stringify(entry)}\n`), "application/x-ndjson"), { reason: data.audit.entries.length ? null : "There is nothing to download" })}</div>
    ${table(app, { id: "audit", label: "audit trail", columns, rows, keyOf: (row) => String(row.id), fallback: "-time", empty: emptyState("Nothing was changed yet.") })}`;
}

function aboutTab(app) {
  const me = app.me ?? {};
  const shown = (value) => (Array.isArray(value) ? value.join(", ") : String(value)) || format.NONE;
  return html`<dl class="options">
      <dt>Mode</dt><dd>${app.source.mode === "node" ? `one nsqd, ${app.source.node}` : "nsqadmin, a cluster"}</dd>
      <dt>Version</dt><dd>${me.version} ${me.build ? html`<small class="soft">build ${me.build}</small>` : nothing}</dd>
      <dt>You</dt><dd>${[me.user, me.role].filter(Boolean).join(" · ")}: ${(me.rights ?? []).join(", ")}</dd>
      ${app.source.mode === "node" ? html`<dt>Extensions</dt><dd>${app.source.extensions.join(", ")}</dd>` : nothing}
      ${Object.entries(me.flags ?? {}).map(([name, value]) => html`<dt>${name}</dt><dd>${shown(value)}</dd>`)}
    </dl>
    ${(me.notes ?? []).map((text) => html`<p class="warning">${text}</p>`)}
    <p class="soft after">Charts by uPlot (MIT), templates by lit-html (BSD-3-Clause).</p>`;
}

const TABS = [["browser", "This browser"], ["lookup", "Lookup"], ["audit", "Audit"], ["about", "About"]];
const tabOf = (app) => (app.route.name === "lookup" ? "lookup" : TABS.some(([id]) => id === app.route.query.tab) ? app.route.query.tab : "browser");

async function load(app) {
  if (app.source.mode === "node") return {};
  const tab = tabOf(app);
  if (tab === "audit") return { audit: await app.source.audit() };
  if (tab !== "lookup") return {};
  try {
    return { inactive: await app.source.inactive() };
  } catch (error) {
    return { inactive: {}, inactiveError: error.message };
  }
}

export const settings = {
  title: () => "Settings",
  load,
  render(app, data) {
    const tab = tabOf(app);
    const bar = tabs({ ...app, href: (_name, options) => app.href("settings", { query: options.query }), route: app.route }, TABS, tab);
    return html`<h1 tabindex="-1">Settings</h1>${bar}
      ${tab === "browser" ? browserTab(app) : tab === "lookup" ? lookupTab(app, data) : tab === "audit" ? auditTab(app, data) : aboutTab(app)}`;
  },
};

export const lookup = { ...settings, title: () => "Lookup" };

export const counter = {
  title: () => "Counter",
  load: async (app) => {
    if (app.source.counter) return app.source.counter();
    let sum = 0;
    for (const row of app.model.rows.values()) if (row.channel !== null) sum += row.message_count;
    return sum;
  },
  render: (app, data) => html`<h1 tabindex="-1" class="hidden">Counter</h1><p class="counter">${format.count(data)}</p><p class="counter-note soft">messages of all channels, ${format.rate(app.overview.totals.in_rate)} published per second</p>`,
};

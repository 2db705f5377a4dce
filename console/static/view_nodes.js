// Nodes, one node, clients.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import * as format from "./format.js";
import { perSecond } from "./history.js";
import { serverTime } from "./api.js";
import { rangeOf } from "./store.js";
import { table } from "./table.js";
import { badge, button, chart, emptyState, openDialog, progress, rangePicker, tile, tiles } from "./widgets.js";

const LEVELS = ["debug", "info", "warn", "error", "fatal"];

function health(row) {
  if (row.state !== "up") return html`<span class="health bad">○ ${row.state === "gone" ? "gone" : "no answer"} ${format.duration(row.age_ms / 1000)}</span>${row.error ? html` <small class="soft">${row.error}</small>` : nothing}`;
  if (row.draining) return html`<span class="health warn">◐ draining</span>`;
  return row.health === "OK" || !row.health ? html`<span class="health good">● OK</span>` : html`<span class="health bad" title=${row.health}>● ${row.health}</span>`;
}

function disk(row) {
  // A node without topics has no files, and does not tell so.
  const used = row.disk_bytes ?? (row.disk_free_bytes ? 0 : null);
  if (used === null) return format.NONE;
  if (!row.disk_free_bytes) return format.bytes(used);
  const share = used / (used + row.disk_free_bytes);
  return html`${format.bytes(used)} / ${format.bytes(row.disk_free_bytes)} <span class="meter" role="img" aria-label="${Math.round(share * 100)} percent"><i .style=${`width:${Math.max(1, Math.round(share * 100))}%`}></i></span>`;
}

/** A rate of a node; of one that does not answer nothing is known, whatever its last figures say. */
const rateNow = (row, name) => (row.state === "up" ? row[name] : null);

const nodeColumns = (app, lookupdCount) => [
  { id: "node", label: "Node", small: true, css: "name", value: (row) => row.node, cell: (row) => html`<a href=${app.href("node", { node: row.node })}>${row.node}</a>${row.hostname && row.hostname !== row.broadcast_address ? html` <small class="soft">${row.hostname}</small>` : nothing}` },
  { id: "health", label: "Health", small: true, value: (row) => (row.state === "up" ? row.health : `~${row.state}`), cell: health },
  { id: "version", label: "Version", value: (row) => row.version, cell: (row) => html`${row.version}${row.out_of_date ? badge("old", "warn", "others run a newer version") : nothing}` },
  { id: "place", label: "Region/zone", value: (row) => `${row.region ?? ""}/${row.zone ?? ""}`, cell: (row) => [row.region, row.zone].filter(Boolean).join("/") || format.NONE },
  { id: "uptime", label: "Uptime", num: true, value: (row) => row.uptime_s, cell: (row) => format.duration(row.uptime_s) },
  { id: "waiting", label: "Waiting", num: true, small: true, value: (row) => row.waiting, cell: (row) => format.count(row.waiting) },
  { id: "in", label: "In/s", num: true, small: true, value: (row) => rateNow(row, "in_rate"), cell: (row) => format.rate(rateNow(row, "in_rate")) },
  { id: "out", label: "Out/s", num: true, small: true, value: (row) => rateNow(row, "out_rate"), cell: (row) => format.rate(rateNow(row, "out_rate")) },
  { id: "clients", label: "Clients", num: true, value: (row) => row.clients, cell: (row) => format.count(row.clients) },
  { id: "disk", label: "Disk used / free", num: true, css: "disk", value: (row) => row.disk_bytes, cell: disk },
  ...(lookupdCount ? [{ id: "lookupds", label: "Lookupds", num: true, tip: "nsqlookupd daemons that know the node", value: (row) => row.lookupds?.length, cell: (row) => html`${row.lookupds?.length ?? 0} of ${lookupdCount}${(row.lookupds?.length ?? 0) < lookupdCount ? html` ${badge("!", "warn", "not every nsqlookupd knows it: see its --lookupd-tcp-address")}` : nothing}` }] : []),
];

export const nodes = {
  title: () => "Nodes",
  load: (app) => app.source.nodes(),
  render(app, data, error) {
    if (error && !data) return html`<h1 tabindex="-1">Nodes</h1>${emptyState("The nodes could not be read.", error.message)}`;
    if (!data) return html`<h1 tabindex="-1">Nodes</h1><p class="soft">Loading…</p>`;
    return html`<h1 tabindex="-1">Nodes <span class="soft">(${format.count(data.nodes.length)})</span></h1>
      ${table(app, {
        id: "nodes", label: "nodes", columns: nodeColumns(app, data.lookupd_count), rows: data.nodes, keyOf: (row) => row.node, fallback: "node", rowClass: (row) => (row.state === "up" ? "" : "old"),
        empty: emptyState("No node is known.", html`<p>An nsqd appears here when it registers with nsqlookupd (<code>--lookupd-tcp-address</code>).</p>`),
      })}`;
  },
};

async function drain(app, row) {
  const held = row.waiting + row.in_flight + row.deferred;
  const isSure = await actions.confirmTyped(app, {
    title: `Drain ${row.node}`,
    word: row.node,
    button: "Drain",
    body: () => html`<p class="loss">${row.node} will refuse publishes, leave discovery, and stop when its channels are empty, or after <code>--drain-timeout</code> (30 s unless set). <b>This can't be undone.</b></p><p><b>${format.plural(held, "message")}</b> ${held === 1 ? "is" : "are"} there now; those that are left stay on its disk.</p>`,
  });
  if (!isSure) return;
  const result = await actions.run(app, "drain", [{ node: row.node }], { confirm: row.node, isQuiet: true });
  if (!result || result.failed.length) return;
  app.notify(`${row.node} is draining.`);
  watchDrain(app, row.node, held);
}

/** Follow a drain: how many messages are left, each second, until the node is gone. */
function watchDrain(app, node, before) {
  const state = { left: before, isGone: false };
  openDialog(app, `Draining ${node}`, (dialog) => html`<p>${state.isGone ? "The node has stopped." : html`<b>${format.count(state.left)}</b> of ${format.plural(before, "message")} left. The node goes on when this is closed.`}</p>
    ${progress("drained", Math.max(before, 1), before - state.left || (state.isGone ? 1 : 0))}
    <footer>${button("Close", () => dialog.done(null))}</footer>`);
  const look = async () => {
    if (!app.dialog) return;
    try {
      const row = (await app.source.nodes()).nodes.find((each) => each.node === node);
      if (app.source.mode === "node") await app.source.poll();
      if (!row || row.state !== "up") throw new Error("gone");
      state.left = row.waiting + row.in_flight + row.deferred;
      setTimeout(look, 1000);
    } catch {
      state.isGone = true;
    }
    app.dialog?.update();
  };
  look();
}

async function setLogLevel(app, node, level) {
  await actions.run(app, "set_log_level", [{ node }], { params: { level } });
}

const nodeTopicColumns = (app) => [
  { id: "topic", label: "Topic", small: true, css: "name", value: (row) => row.topic, cell: (row) => html`<a href=${app.href("topic", { topic: row.topic })} title=${row.topic}>${row.topic}</a> ${row.paused ? badge("paused", "warn") : nothing}` },
  { id: "waiting", label: "Waiting", num: true, small: true, value: (row) => row.waiting, cell: (row) => format.count(row.waiting) },
  { id: "in", label: "In/s", num: true, small: true, value: (row) => row.in_rate, cell: (row) => format.rate(row.in_rate) },
  { id: "out", label: "Out/s", num: true, small: true, value: (row) => row.out_rate, cell: (row) => format.rate(row.out_rate) },
  { id: "in_flight", label: "In flight", num: true, value: (row) => row.in_flight, cell: (row) => format.count(row.in_flight) },
  { id: "deferred", label: "Deferred", num: true, value: (row) => row.deferred, cell: (row) => format.count(row.deferred) },
  { id: "clients", label: "Clients", num: true, value: (row) => row.clients, cell: (row) => format.count(row.clients) },
  {
    id: "channels", label: "Channels", cell: (row) => {
      const list = row.channel_list ?? [];
      return html`${list.slice(0, 4).map((channel, at) => html`${at ? ", " : ""}<a href=${app.href("channel", { topic: row.topic, channel: channel.channel })}>${channel.channel}</a>`)}${list.length > 4 ? `, ${list.length - 4} more` : nothing}`;
    },
  },
];

export const node = {
  title: (app) => app.route.node,
  every: 5,
  async load(app, route) {
    const [detail, history] = await Promise.all([app.source.nodeDetail(route.node), app.source.history({ node: app.source.mode === "node" ? undefined : route.node, range: rangeOf(app.route) })]);
    const producers = await app.source.clients({ node: route.node, kind: "producer" }).catch(() => null);
    return { detail, history, producers };
  },
  render(app, data, error) {
    const name = app.route.node;
    const heading = html`<nav class="crumbs" aria-label="breadcrumb"><a href=${app.href("nodes")}>Nodes</a></nav>`;
    if (error && !data) return html`${heading}<h1 tabindex="-1">${name}</h1>${emptyState(error.status === 404 ? `No node ${name} is known.` : "The node could not be read.", error.status === 404 ? nothing : html`<p>${error.message}</p>`, html`<p><a href=${app.href("nodes")}>All nodes</a></p>`)}`;
    const row = data?.detail;
    if (!row) return html`${heading}<h1 tabindex="-1">${name}</h1><p class="soft">Loading…</p>`;
    const lacksDrain = row.state !== "up" ? "It does not answer" : (row.extensions ?? []).includes("drain") ? null : "This node can't drain: it is not ours, or older";
    const level = row.options?.log_level;
    const found = app.overview.findings.filter((finding) => finding.node === name);
    return html`${heading}
      <div class="bar"><h1 tabindex="-1">${name}</h1>${health(row)}<span class="grow"></span>
        ${app.can("admin") ? button("Drain…", () => drain(app, row), { reason: row.draining ? "It is draining already" : lacksDrain }) : nothing}</div>
      ${found.map((finding) => html`<p class="warning">${finding.text}. ${finding.hint}</p>`)}
      ${(row.errors ?? []).filter((text) => !found.some((finding) => finding.text.includes(text))).map((text) => html`<p class="warning">${text}</p>`)}
      ${tiles(
        tile("In", html`${format.rate(rateNow(row, "in_rate"))}<small>/s</small>`),
        tile("Out", html`${format.rate(rateNow(row, "out_rate"))}<small>/s</small>`),
        tile("Waiting", format.count(row.waiting)),
        tile("In flight", format.count(row.in_flight)),
        tile("Clients", format.count(row.clients)),
        tile("Memory", format.bytes(row.memory_bytes)),
        tile("Disk used", format.bytes(row.disk_bytes), { note: row.disk_free_bytes ? `${format.bytes(row.disk_free_bytes)} free` : null }),
        tile("Uptime", format.duration(row.uptime_s), { note: `v${row.version}` }),
      )}
      <div class="chart-bar">${rangePicker(app)}</div>
      <div class="charts two">
        ${chart(app, "In and out", data.history, [["in", "in"], ["out", "out"]], "/s")}
        ${chart(app, "Waiting, in flight, deferred", data.history, [["waiting", "waiting"], ["in flight", "in_flight"], ["deferred", "deferred"]])}
      </div>
      <h2>Topics <span class="soft">(${format.count(row.topic_list.length)})</span></h2>
      ${table(app, { id: "node-topics", label: "topics of this node", columns: nodeTopicColumns(app), rows: row.topic_list, keyOf: (each) => each.topic, fallback: "-waiting", empty: emptyState("This node has no topic.") })}
      <p class="after"><a href=${app.href("clients", { query: { node: name } })}>Consumers of this node</a></p>
      <h2>Publishers</h2>
      ${data.producers?.rows.length
        ? table(app, { id: "producers", label: "publishers", sortKey: "psort", columns: producerColumns(app), rows: data.producers.rows, keyOf: clientKey, fallback: "client" })
        : emptyState(row.state === "up" ? "No connection publishes over TCP now." : "Not known while the node does not answer.")}
      ${row.options
        ? html`<h2>Options</h2>
            ${app.can("admin") && level !== undefined
              ? html`<p><label>Log level <select id="log-level" @change=${(event) => setLogLevel(app, name, event.target.value)}>${LEVELS.map((each, at) => html`<option ?selected=${level === at + 1 || level === each}>${each}</option>`)}</select></label> <small class="soft">until the next restart</small></p>`
              : nothing}
            <dl class="options">${Object.entries(row.options).filter(([key]) => key !== "log_level").map(([key, value]) => html`<dt>${key}</dt><dd>${showOption(key, value)}</dd>`)}</dl>`
        : nothing}`;
  },
};

function showOption(key, value) {
  if (Array.isArray(value)) return value.join(", ") || format.NONE;
  if (/timeout|ttl|_time$/.test(key) && typeof value === "number") return value ? format.latency(value) : "0";
  return value === "" ? format.NONE : String(value);
}

// Clients.

const clientKey = (row) => `${row.node} ${row.remote_address} ${row.topic ?? ""}/${row.channel ?? ""}`;

/** Add FIN/s and REQ/s, from this answer and the one before. */
export function clientRates(app, answer) {
  const before = app.memory.get("clients") ?? { rows: new Map(), at: null };
  const now = performance.now() / 1000;
  const isSoon = before.at !== null && now - before.at < 0.5;
  const rows = new Map();
  for (const row of answer.rows) {
    const key = clientKey(row);
    const old = before.rows.get(key);
    row.finish_rate = isSoon ? old?.finish_rate ?? null : perSecond(old?.finish_count, row.finish_count, now - before.at);
    row.requeue_rate = isSoon ? old?.requeue_rate ?? null : perSecond(old?.requeue_count, row.requeue_count, now - before.at);
    row.still_since = old && old.finish_count === row.finish_count ? old.still_since : now;
    row.still_s = now - row.still_since;
    rows.set(key, row);
  }
  if (!isSoon) app.memory.set("clients", { rows, at: now });
  return answer;
}

const library = (row) => row.user_agent || "unknown";

function attributes(row) {
  const parts = [];
  if (row.tls) parts.push(badge(row.tls_version || "TLS", "", row.tls_cipher_suite));
  if (row.snappy) parts.push(badge("snappy"));
  if (row.deflate) parts.push(badge("deflate"));
  if (row.sample_rate) parts.push(badge(`${row.sample_rate} % sample`, "warn"));
  if (row.authed || row.auth_identity) parts.push(identity(row));
  const place = [row.region, row.zone].filter(Boolean).join("/");
  if (place) parts.push(badge(place));
  return parts;
}

function identity(row) {
  const text = `auth: ${row.auth_identity || "yes"}`;
  // Whoever runs the auth server chose this text: only web addresses become links.
  if (/^https?:\/\//i.test(row.auth_identity_url ?? "")) return html`<a class="badge" href=${row.auth_identity_url} rel="noopener noreferrer" target="_blank">${text}</a>`;
  return badge(text, "", row.auth_identity_url || undefined);
}

const who = (row) => html`${format.visible(row.hostname || row.remote_address)} <small class="soft">${format.visible(row.client_id && row.client_id !== row.hostname ? row.client_id : "")} ${row.remote_address}</small>`;

const clientColumns = (app, { isOfOneChannel }) => [
  { id: "client", label: "Client", small: true, css: "name", value: (row) => `${row.hostname} ${row.remote_address}`, cell: who },
  ...(isOfOneChannel ? [] : [{ id: "queue", label: "Topic / channel", small: true, css: "pair", value: (row) => `${row.topic}/${row.channel}`, cell: (row) => html`<div class="named"><a href=${app.href("topic", { topic: row.topic })} title=${row.topic}>${row.topic}</a> / <a href=${app.href("channel", { topic: row.topic, channel: row.channel })} title=${row.channel}>${row.channel}</a></div>` }]),
  ...(app.source.mode === "node" ? [] : [{ id: "node", label: "Node", value: (row) => row.node, cell: (row) => html`<a href=${app.href("node", { node: row.node })}>${row.node}</a>` }]),
  { id: "ready", label: "RDY", num: true, small: true, tip: "messages that it is ready to take", value: (row) => row.ready_count, cell: (row) => (row.ready_count ? format.count(row.ready_count) : badge("0", "warn", "it takes nothing now")) },
  { id: "in_flight", label: "In flight", num: true, small: true, value: (row) => row.in_flight_count, cell: (row) => format.count(row.in_flight_count) },
  { id: "fin", label: "FIN/s", num: true, value: (row) => row.finish_rate, cell: (row) => format.rate(row.finish_rate) },
  { id: "req", label: "REQ/s", num: true, value: (row) => row.requeue_rate, cell: (row) => format.rate(row.requeue_rate) },
  { id: "messages", label: "Messages", num: true, value: (row) => row.message_count, cell: (row) => format.count(row.message_count) },
  { id: "library", label: "Library", value: library, cell: (row) => format.visible(library(row)) },
  { id: "attributes", label: "Attributes", cell: attributes },
  { id: "since", label: "Connected", num: true, tip: "for how long", value: (row) => -row.connect_ts, cell: (row) => format.duration(serverTime() - row.connect_ts) },
  ...(app.can("admin") ? [{ id: "act", label: "", css: "act", cell: (row) => button("Close…", () => closeClient(app, row), { reason: lacksClose(app, row) }) }] : []),
];

const producerColumns = (app) => [
  { id: "client", label: "Client", small: true, css: "name", value: (row) => `${row.hostname} ${row.remote_address}`, cell: who },
  { id: "published", label: "Published", num: true, small: true, value: (row) => row.pub_counts.reduce((sum, [, count]) => sum + count, 0), cell: (row) => format.count(row.pub_counts.reduce((sum, [, count]) => sum + count, 0)) },
  { id: "topics", label: "Topics", small: true, cell: (row) => row.pub_counts.slice(0, 5).map(([name, count], at) => html`${at ? ", " : ""}<a href=${app.href("topic", { topic: name })}>${name}</a> ${format.count(count)}`) },
  { id: "library", label: "Library", value: library, cell: (row) => format.visible(library(row)) },
  { id: "attributes", label: "Attributes", cell: attributes },
  { id: "since", label: "Connected", num: true, value: (row) => -row.connect_ts, cell: (row) => format.duration(serverTime() - row.connect_ts) },
];

const lacksClose = (app, row) => app.source.lacks("client_close", row.node);

async function closeClient(app, row) {
  const held = row.in_flight_count;
  const body = html`<p>The connection of <b>${format.visible(row.hostname || "a client")}</b> (${row.remote_address}) is asked to end and then cut. ${held ? `Its ${format.plural(held, "message")} in flight ${held === 1 ? "goes" : "go"} to other consumers. ` : ""}Most libraries connect again.</p>`;
  if (await actions.confirmOnce(app, { title: "Close a connection", body, button: "Close it" })) actions.run(app, "close_client", [{ node: row.node }], { params: { remote_address: row.remote_address } });
}

const FILTERS = [
  ["rdy0", "RDY 0", (row) => row.ready_count === 0],
  ["stuck", "no FIN for 1 min", (row) => row.in_flight_count > 0 && row.still_s >= 60],
  ["full", "in flight > RDY", (row) => row.in_flight_count > row.ready_count],
  ["plain", "no TLS", (row) => !row.tls],
];

function groupTable(app, rows, by) {
  const groups = new Map();
  for (const row of rows) {
    const name = by === "library" ? library(row) : row.hostname || row.remote_address;
    const group = groups.get(name) ?? { name, rows: [], hosts: new Set(), queues: new Set(), in_flight: 0, rate: null };
    group.rows.push(row);
    group.hosts.add(row.hostname);
    group.queues.add(`${row.topic}/${row.channel}`);
    group.in_flight += row.in_flight_count;
    if (row.finish_rate !== null) group.rate = (group.rate ?? 0) + row.finish_rate;
    groups.set(name, group);
  }
  const columns = [
    { id: "group", label: by === "library" ? "Library" : "Host", small: true, css: "name", value: (group) => group.name, cell: (group) => html`<a href=${app.href("clients", { query: { q: group.name } })}>${format.visible(group.name)}</a>` },
    { id: "hosts", label: "Hosts", num: true, value: (group) => group.hosts.size, cell: (group) => format.count(group.hosts.size) },
    { id: "connections", label: "Connections", num: true, small: true, value: (group) => group.rows.length, cell: (group) => format.count(group.rows.length) },
    { id: "queues", label: "Channels", num: true, small: true, value: (group) => group.queues.size, cell: (group) => format.count(group.queues.size) },
    { id: "in_flight", label: "In flight", num: true, small: true, value: (group) => group.in_flight, cell: (group) => format.count(group.in_flight) },
    { id: "fin", label: "FIN/s", num: true, value: (group) => group.rate, cell: (group) => format.rate(group.rate) },
  ];
  return table(app, { id: "client-groups", label: `clients by ${by}`, columns, rows: [...groups.values()], keyOf: (group) => group.name, sortKey: "gsort", fallback: "-connections" });
}

export function clientsTable(app, answer, { title, empty, isOfOneChannel = false }) {
  const { q = "", show = "", by, node: nodeName } = app.route.query;
  const wanted = q.toLowerCase();
  const chosen = FILTERS.filter(([id]) => show.split(",").includes(id));
  const rows = answer.rows.filter((row) => {
    const text = [row.hostname, row.client_id, row.remote_address, row.user_agent, row.topic, row.channel, row.node, row.auth_identity].join(" ").toLowerCase();
    return text.includes(wanted) && chosen.every(([, , fits]) => fits(row)) && (!nodeName || row.node === nodeName);
  });
  const toggle = (id) => {
    const ids = new Set(show.split(",").filter(Boolean));
    if (!ids.delete(id)) ids.add(id);
    app.setQuery({ show: [...ids].join(",") });
  };
  const groups = isOfOneChannel ? [] : [["host", "by host"], ["library", "by library"]];
  const isFiltered = Boolean(wanted || chosen.length || nodeName);
  return html`<div class="bar"><h2>${title} <span class="soft">(${format.count(rows.length)}${isFiltered ? ` of ${format.count(answer.total)}` : ""})</span></h2>
      ${answer.rows.length
        ? html`<input id="client-filter" type="search" placeholder="Filter" aria-label="filter clients" .value=${q} autocomplete="off" @input=${(event) => app.setQuery({ q: event.target.value }, { isTyping: true })} />
            ${FILTERS.map(([id, label]) => html`<button type="button" class="chip" aria-pressed=${chosen.some(([each]) => each === id) ? "true" : "false"} @click=${() => toggle(id)}>${label}</button>`)}
            ${groups.map(([id, label]) => html`<button type="button" class="chip" aria-pressed=${by === id ? "true" : "false"} @click=${() => app.setQuery({ by: by === id ? null : id })}>${label}</button>`)}
            ${nodeName ? html`<button type="button" class="chip" aria-pressed="true" @click=${() => app.setQuery({ node: null })}>${nodeName} ×</button>` : nothing}`
        : nothing}</div>
    ${answer.answered < answer.asked ? html`<p class="soft">${answer.answered} of ${answer.asked} nodes have answered.</p>` : nothing}
    ${answer.errors.map(({ node: name, text }) => html`<p class="warning">${name}: ${text}</p>`)}
    ${answer.truncated ? html`<p class="warning">These are the first 5,000 of ${format.count(answer.total)}: narrow the filter.</p>` : nothing}
    ${!answer.rows.length
      ? empty
      : by && !isOfOneChannel
        ? groupTable(app, rows, by)
        : table(app, { id: "clients", label: "clients", sortKey: "csort", columns: clientColumns(app, { isOfOneChannel }), rows, keyOf: clientKey, fallback: "client", empty: emptyState("No client fits the filter.") })}`;
}

export const clients = {
  title: () => "Clients",
  every: 9.5,
  load: async (app) => clientRates(app, await app.source.clients({ kind: "consumer", node: app.route.query.node })),
  render(app, data, error) {
    if (error && !data) return html`<h1 tabindex="-1">Clients</h1>${emptyState("The clients could not be read.", error.message)}`;
    if (!data) return html`<h1 tabindex="-1">Clients</h1><p class="soft">Asking ${app.overview.nodes.up > 1 ? `${app.overview.nodes.up} nodes` : "the node"}…</p>`;
    return html`<h1 tabindex="-1" class="hidden">Clients</h1>
      ${clientsTable(app, data, { title: "Clients", empty: emptyState("No consumer is connected.", html`<p>A consumer appears here when it subscribes to a channel.</p>`) })}`;
  },
};

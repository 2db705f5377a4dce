// Overview, topics, one topic, one channel.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as format from "./format.js";
import { invalidName } from "./model.js";
import { rangeOf } from "./store.js";
import { columnsMenu, table } from "./table.js";
import { badge, button, chart, copyLine, emptyState, paused, rangePicker, spark, tabs, tile, tiles } from "./widgets.js";

const pausedRow = (row) => paused({ pausedNodes: row.paused, nodeCount: row.nodes });
const estimated = (row) => (row.out_estimated ? html`<abbr title="estimated: this node does not count finished messages, and emptying looks like finishing">~</abbr>` : nothing);

/** History that a page asks for with its other figures. */
const historyOf = (app, query) => app.source.history({ ...query, range: rangeOf(app.route) });

/** Which queue is not there, and the way back to what is. */
export const notFound = (app, { code }, { topic: name, channel: channelName }) =>
  code === "CHANNEL_NOT_FOUND"
    ? { what: `${name} has no channel ${channelName}.`, back: app.href("topic", { topic: name }), backLabel: `Back to ${name}` }
    : { what: `No node has a topic ${name}.`, back: app.href("topics"), backLabel: "All topics" };

export function errorState(app, error, { what, back, backLabel, more }) {
  if (error.status === 404) return emptyState(what, html`<p><a href=${back}>${backLabel}</a></p>`, more ?? nothing);
  return emptyState("The figures could not be read.", html`<p>${error.message}</p>`, html`<button type="button" @click=${() => app.refresh()}>Ask again</button>`);
}

// Findings.

function findingRow(app, finding) {
  const { topic, channel, node, severity, hint } = finding;
  const lasted = finding.since_ms ? app.overview.time_ms - finding.since_ms : 0;
  const details = [finding.count ? `${format.count(finding.count)} waiting` : "", lasted >= 60_000 ? `for ${format.duration(lasted / 1000)}` : ""].filter(Boolean).join(", ");
  const href = topic !== undefined ? app.href(channel === undefined ? "topic" : "channel", { topic, channel }) : node !== undefined ? app.href("node", { node }) : null;
  return html`<li class=${severity}>
    <span class="sign" role="img" aria-label=${severity}>${{ error: "!", warning: "!", info: "i" }[severity]}</span>
    <div><p>${href ? html`<a href=${href}>${finding.text}</a>` : finding.text}${details ? html` <span class="soft">${details}</span>` : nothing}</p><p class="soft">${hint}</p></div>
    ${["no_consumer", "no_channel"].includes(finding.kind) && app.can("operate") ? button("Pause topic", () => app.act("pause", [{ topic }], true)) : nothing}
  </li>`;
}

function findings(app, list = app.overview.findings) {
  const isOpen = app.memory.get("all-findings");
  const shown = isOpen ? list : list.slice(0, 5);
  const rest = list.length - shown.length;
  return html`<section class="findings ${list.length ? "" : "none"}" aria-labelledby="findings-title">
    <h2 id="findings-title">${list.length ? `Findings (${format.count(list.length + (app.overview.more_findings ?? 0))})` : "No findings"}</h2>
    ${list.length
      ? html`<ul>${shown.map((finding) => findingRow(app, finding))}</ul>`
      : html`<p class="soft">${knowsNodes(app) ? `No queue grows without a consumer, ${app.source.mode === "node" ? "the node is healthy" : "every node answers and is healthy"}.` : "There is no node to look at."}</p>`}
    ${rest > 0 || isOpen
      ? html`<button type="button" class="link" @click=${() => {
          app.memory.set("all-findings", !isOpen);
          app.invalidate();
        }}>${isOpen ? "Fewer" : `${rest} more`}</button>`
      : nothing}
  </section>`;
}

// The table of topics.

const TOPIC_COLUMNS = [
  {
    id: "topic", label: "Topic", small: true, css: "name", value: (row) => row.topic.toLowerCase(),
    cell: (row, app = current) => html`<a href=${app.href("topic", { topic: row.topic })} title=${row.topic}>${row.topic}</a> ${pausedRow(row)}${row.dead_letters_of ? html` <small class="soft">dead letters of ${row.dead_letters_of}</small>` : nothing}${row.stale ? html` ${badge(`${format.plural(row.stale, "node")} silent`, "warn", "not answering: the last figures are counted")}` : nothing}`,
  },
  { id: "waiting", label: "Waiting", num: true, small: true, tip: "messages in the queue of the topic and in those of its channels, added", value: (row) => row.waiting, cell: (row) => format.count(row.waiting) },
  { id: "in", label: "In/s", num: true, small: true, isOptional: true, tip: "messages published per second", value: (row) => row.in_rate, cell: (row) => format.rate(row.in_rate) },
  { id: "out", label: "Out/s", num: true, small: true, isOptional: true, tip: "messages finished per second, over all channels", value: (row) => row.out_rate, cell: (row) => html`${estimated(row)}${format.rate(row.out_rate)}` },
  { id: "in_flight", label: "In flight", num: true, isOptional: true, tip: "delivered, and not yet finished", value: (row) => row.in_flight, cell: (row) => format.count(row.in_flight) },
  { id: "deferred", label: "Deferred", num: true, isOptional: true, tip: "to be delivered later", value: (row) => row.deferred, cell: (row) => format.count(row.deferred) },
  { id: "clients", label: "Clients", num: true, isOptional: true, small: true, tip: "consumers of all channels", value: (row) => row.clients, cell: (row) => format.count(row.clients) },
  { id: "channels", label: "Channels", num: true, isOptional: true, value: (row) => row.channels, cell: (row) => format.count(row.channels) },
  { id: "disk", label: "Disk", num: true, isOptional: true, tip: "bytes of its files", value: (row) => row.disk_bytes, cell: (row) => format.bytes(row.disk_bytes) },
  { id: "messages", label: "Messages", num: true, isOptional: true, isHidden: true, tip: "published since the start", value: (row) => row.message_count, cell: (row) => format.count(row.message_count) },
  { id: "nodes", label: "Nodes", num: true, isOptional: true, isHidden: true, value: (row) => row.nodes, cell: (row) => format.count(row.nodes) },
  { id: "spark", label: "Last 10 min", css: "spark-cell", isOptional: true, tip: "waiting", cell: (row, app = current) => spark(app.source.sparkline(row.topic)) },
];
// The columns' functions get a row alone; there is one app in a page.
let current = null;

const firstMessage = (app) => `curl -d 'hello, world' '${location.origin}${app.source.mode === "node" ? "" : app.href("overview").replace(/\/$/, "")}/pub?topic=greetings'`;

const knowsNodes = ({ source, overview: { nodes } }) => source.mode === "node" || nodes.up + nodes.stale + nodes.gone > 0;

function noTopics(app) {
  if (!knowsNodes(app)) {
    return emptyState("No nsqd is known yet.", html`<p>One appears here within seconds when it is told where nsqlookupd listens for TCP:</p>`, copyLine(app, "nsqd --lookupd-tcp-address=HOST:4160"));
  }
  return emptyState(
    app.source.mode === "node" ? "No topic yet. Publish the first message:" : "No topic yet.",
    app.source.mode === "node" ? copyLine(app, firstMessage(app)) : html`<p>Publish the first message to any nsqd of the cluster, or from here.</p>`,
    app.can("operate") ? html`<p>${button("Publish…", () => app.act("publish", { topic: "greetings", body: "hello, world" }), { kind: "primary" })}</p>` : nothing,
  );
}

// The rows of the table as of the last render; scrolling changes none of them.
let shown = { rows: [] };

function rowsOf({ model }, q, backlog) {
  if (shown.model !== model || shown.version !== model.version || shown.q !== q || shown.backlog !== backlog) {
    const wanted = q.toLowerCase();
    const fits = (row) => (!wanted || row.topic.toLowerCase().includes(wanted) || row.list.some((channel) => channel.channel.toLowerCase().includes(wanted))) && (!backlog || row.waiting > 0);
    shown = { model, version: model.version, q, backlog, rows: [...model.topics.values()].filter(fits) };
  }
  return shown.rows;
}

function topicsTable(app) {
  current = app;
  const { q = "", backlog } = app.route.query;
  const count = app.model.topics.size;
  const rows = rowsOf(app, q, backlog);
  if (!count) return noTopics(app);
  for (const name of app.marks) if (!app.model.topics.has(name)) app.marks.delete(name);
  const marked = [...app.marks].map((topic) => ({ topic }));
  const isAdmin = app.can("admin");
  const canOperate = app.can("operate");
  return html`<section aria-labelledby="topics-title">
    <div class="bar">
      <h2 id="topics-title">Topics <span class="soft">(${rows.length === count ? format.count(count) : `${format.count(rows.length)} of ${format.count(count)}`})</span></h2>
      <input id="filter" type="search" placeholder="Filter" aria-label="filter topics" .value=${q} autocomplete="off" spellcheck="false" @input=${(event) => app.setQuery({ q: event.target.value }, { isTyping: true })} />
      <label class="check"><input type="checkbox" .checked=${Boolean(backlog)} @change=${(event) => app.setQuery({ backlog: event.target.checked ? 1 : null })} /> only with backlog</label>
      ${columnsMenu(app, "topics", TOPIC_COLUMNS)}
      <span class="grow"></span><span class="acts">
      ${marked.length && canOperate
        ? html`<span class="mark-count">${format.count(marked.length)} marked</span>
            ${button("Pause", () => app.act("pause", marked, true))}${button("Unpause", () => app.act("pause", marked, false))}
            ${isAdmin ? html`${button("Empty…", () => app.act("lose", "empty", marked))}${button("Delete…", () => app.act("lose", "delete", marked))}` : nothing}`
        : canOperate
          ? html`${button("Publish…", () => app.act("publish"))}${button("Create topic…", () => app.act("create"))}`
          : nothing}</span>
    </div>
    ${table(app, {
      id: "topics", label: "topics", columns: TOPIC_COLUMNS, rows, keyOf: (row) => row.topic, fallback: "-waiting", marks: canOperate ? app.marks : undefined,
      onView: (inView) => app.source.sparklines(inView.map((row) => row.topic)),
      empty: emptyState("No topic fits the filter.", html`<p><button type="button" @click=${() => app.setQuery({ q: null, backlog: null })}>Show all</button></p>`),
    })}
  </section>`;
}

function pauseMarked(app, key) {
  const names = app.marks.size ? [...app.marks] : key ? [key] : [];
  const rows = names.map((name) => app.model.topics.get(name)).filter(Boolean);
  if (rows.length && app.can("operate")) app.act("pause", rows.map((row) => ({ topic: row.topic })), rows.some((row) => !row.paused));
}

const nodesNote = ({ up, stale, gone }) => (stale || gone ? `${up} of ${up + stale + gone} nodes answer` : null);

export const overview = {
  title: () => "Overview",
  load: async (app) => ({ history: await historyOf(app, {}) }),
  render(app, data) {
    const { totals, nodes } = app.overview;
    const history = data?.history;
    const isEmpty = !app.model.topics.size;
    return html`<h1 tabindex="-1" class="hidden">Overview</h1>
      ${findings(app)}
      ${tiles(
        tile("In", html`${format.rate(totals.in_rate)}<small>/s</small>`, { tip: "messages published per second" }),
        tile("Out", html`${estimated(totals)}${format.rate(totals.out_rate)}<small>/s</small>`, { tip: "messages finished per second, over all channels" }),
        tile("Waiting", format.count(totals.waiting), { tip: "messages in the queues of topics and channels, added", note: nodesNote(nodes), id: "total-waiting" }),
        tile("In flight", format.count(totals.in_flight), { tip: "delivered, and not yet finished" }),
        app.source.mode === "node"
          ? tile("Node", app.source.stats.health === "OK" ? "healthy" : "unhealthy", { href: app.href("nodes") })
          : tile("Nodes", html`${format.count(nodes.up)} up`, { href: app.href("nodes"), note: [nodes.stale ? `${nodes.stale} silent` : "", nodes.gone ? `${nodes.gone} gone` : ""].filter(Boolean).join(", ") }),
      )}
      ${isEmpty
        ? nothing
        : html`<div class="chart-bar">${rangePicker(app)}</div><div class="charts three">
            ${chart(app, "In and out", history, [["in", "in"], ["out", "out"]], "/s")}
            ${chart(app, "Waiting", history, [["waiting", "waiting"]])}
            ${chart(app, "In flight and deferred", history, [["in flight", "in_flight"], ["deferred", "deferred"]])}
          </div>`}
      ${topicsTable(app)}`;
  },
  onPause: pauseMarked,
};

export const topics = {
  title: () => "Topics",
  render: (app) => html`<h1 tabindex="-1" class="hidden">Topics</h1>${topicsTable(app)}`,
  onPause: pauseMarked,
};

// One topic.

const depthParts = (row) => html`${format.count(row.depth)} <small class="soft">(${format.count(row.memory_depth ?? row.depth - row.backend_depth)} + ${format.count(row.backend_depth)})</small>`;

function latencyTile(latency) {
  const worst = latency?.percentiles?.toSorted((a, b) => b.quantile - a.quantile)[0];
  if (!worst || !latency.count) return nothing;
  return tile(`Latency p${+(worst.quantile * 100).toFixed(1)}`, format.latency(worst.max), { tip: "from publish to FIN; the worst node", note: worst.max === worst.average ? null : `avg ${format.latency(worst.average)}` });
}

const channelColumns = (app) => [
  { id: "channel", label: "Channel", small: true, css: "name", value: (row) => row.channel.toLowerCase(), cell: (row) => html`<a href=${app.href("channel", { topic: row.topic, channel: row.channel })} title=${row.channel}>${row.channel}</a> ${pausedRow(row)}` },
  { id: "waiting", label: "Waiting (memory + disk)", num: true, small: true, value: (row) => row.depth, cell: depthParts },
  { id: "in", label: "In/s", num: true, value: (row) => row.in_rate, cell: (row) => format.rate(row.in_rate) },
  { id: "out", label: "Out/s", num: true, small: true, value: (row) => row.out_rate, cell: (row) => html`${estimated(row)}${format.rate(row.out_rate)}` },
  { id: "in_flight", label: "In flight", num: true, value: (row) => row.in_flight, cell: (row) => format.count(row.in_flight) },
  { id: "deferred", label: "Deferred", num: true, value: (row) => row.deferred, cell: (row) => format.count(row.deferred) },
  { id: "requeued", label: "Requeued/s", num: true, value: (row) => row.requeue_rate, cell: (row) => format.rate(row.requeue_rate) },
  { id: "timed_out", label: "Timed out/s", num: true, value: (row) => row.timeout_rate, cell: (row) => format.rate(row.timeout_rate) },
  { id: "clients", label: "Clients", num: true, small: true, value: (row) => row.clients, cell: (row) => format.count(row.clients) },
  { id: "latency", label: "Latency", num: true, tip: "the highest percentile of the worst node", value: (row) => row.latency_ns, cell: (row) => format.latency(row.latency_ns) },
  { id: "empty", label: "Time to empty", num: true, tip: "at the rates of now", cell: (row) => format.timeToEmpty(row.depth, row.in_rate, row.out_rate) },
  {
    id: "act", label: "", css: "act", cell: (row) => {
      const target = [{ topic: row.topic, channel: row.channel }];
      return app.can("operate") ? html`${button(row.paused ? "Unpause" : "Pause", () => app.act("pause", target, !row.paused))}${app.can("admin") ? button("Empty…", () => app.act("lose", "empty", target)) : nothing}` : nothing;
    },
  },
];

function nodeState(row) {
  if (row.error) return badge(`${row.state === "gone" ? "gone" : "no answer"}${row.age_ms ? ` ${format.duration(row.age_ms / 1000)}` : ""}`, "bad age", row.error);
  return row.state === "up" ? nothing : badge(row.state, "warn age");
}

const topicNodeColumns = (app, topic) => [
  { id: "node", label: "Node", small: true, css: "name", value: (row) => row.node, cell: (row) => html`<a href=${app.href("node", { node: row.node })}>${row.node}</a> ${row.paused ? badge("paused", "warn") : nothing}${nodeState(row)}${row.tombstoned_s === null || row.tombstoned_s === undefined ? nothing : badge(row.tombstoned_s ? `hidden from discovery, ${Math.round(row.tombstoned_s)} s left` : "hidden from discovery", "warn", "a tombstone: consumers are not sent there")}` },
  { id: "waiting", label: "Waiting in topic (memory + disk)", num: true, small: true, tip: "in the topic's own queue, which its channels empty", value: (row) => row.depth, cell: depthParts },
  { id: "in", label: "In/s", num: true, small: true, value: (row) => row.in_rate, cell: (row) => format.rate(row.in_rate) },
  { id: "messages", label: "Messages", num: true, small: true, value: (row) => row.message_count, cell: (row) => format.count(row.message_count) },
  { id: "channels", label: "Channels", num: true, value: (row) => row.channels, cell: (row) => format.count(row.channels) },
  {
    id: "act", label: "", css: "act", cell: (row) => {
      const target = [{ topic, node: row.node }];
      if (!app.can("operate") || app.source.mode === "node") return nothing;
      return html`${button(row.paused ? "Unpause here" : "Pause here", () => app.act("pause", target, !row.paused))}${app.can("admin") ? html`${button("Empty here…", () => app.act("lose", "empty", target))}${button("Tombstone…", () => tombstone(app, topic, row.node))}` : nothing}`;
    },
  },
];

/** The messages of a topic and its channels on one node, as of now. */
async function countOn(app, node, topic) {
  const { node_list: own, channel_list: list } = await app.source.topic(topic, { fresh: true });
  const parts = await Promise.all(list.map(({ channel }) => app.source.channel(topic, channel, { fresh: true })));
  return [own, ...parts.map((part) => part.node_list)]
    .flatMap((nodes) => nodes.filter((each) => each.node === node))
    .reduce((sum, { depth, in_flight: inFlight = 0, deferred = 0 }) => sum + depth + inFlight + deferred, 0);
}

async function tombstone(app, topic, node) {
  let held = null;
  const isSure = await app.act("confirmTyped", {
    title: `Tombstone ${topic} on ${node}`,
    word: topic,
    button: "Tombstone",
    load: async () => {
      held = await countOn(app, node, topic).catch(() => null);
    },
    isHarmless: () => held === 0,
    body: () => html`<p>nsqlookupd hides <b>${node}</b> from consumers of <b>${topic}</b> for about 45 s, and the topic is deleted on that node at once. A producer that publishes there again brings it back.</p>
      <p class="loss">${held === null ? "How many messages are there is not known." : held ? html`<b>${format.plural(held, "message")}</b> of its queue and channels there will be gone for good.` : "No message is there now."}</p>`,
  });
  if (isSure) app.act("run", "tombstone", [{ topic, node }]);
}

const TABS = [["channels", "Channels"], ["nodes", "Nodes"], ["messages", "Messages"], ["limits", "Limits"]];

/** A tab whose module comes when it is opened. */
function lazyTab(app, name, load, show) {
  const module = app.memory.get(name);
  if (!module) {
    const set = (loaded) => {
      app.memory.set(name, loaded);
      app.invalidate();
    };
    load().then(set, () => set({ panel: () => emptyState("This part of the page did not load.", html`<button type="button" @click=${() => set(null)}>Load again</button>`) }));
    return html`<p class="soft">Loading…</p>`;
  }
  return show(module);
}

function channelLines(app, row, histories, member) {
  const list = row.channel_list;
  return list.slice(0, 6).map((channel) => [channel.channel, histories?.[channel.channel]?.series?.[member]]);
}

export const topic = {
  title: (app) => app.route.topic,
  async load(app, route) {
    const [detail, history] = await Promise.all([app.source.topic(route.topic), historyOf(app, { topic: route.topic })]);
    const names = detail.channel_list.slice(0, 6).map((channel) => channel.channel);
    const all = await Promise.all(names.map((channel) => historyOf(app, { topic: route.topic, channel })));
    return { detail, history, histories: Object.fromEntries(names.map((name, at) => [name, all[at]])) };
  },
  render(app, data, error) {
    const name = app.route.topic;
    const heading = html`<nav class="crumbs" aria-label="breadcrumb"><a href=${app.href("topics")}>Topics</a></nav>`;
    if (error && !data) {
      return html`${heading}<h1 tabindex="-1">${name}</h1>${errorState(app, error, {
        ...notFound(app, error, { topic: name }),
        more: app.can("operate") && !invalidName(name) ? html`<p>${button("Publish to it…", () => app.act("publish", { topic: name }))}</p>` : nothing,
      })}`;
    }
    const detail = data?.detail;
    if (!detail) return html`${heading}<h1 tabindex="-1">${name}</h1><p class="soft">Loading…</p>`;
    const tab = TABS.some(([id]) => id === app.route.query.tab) ? app.route.query.tab : "channels";
    const target = [{ topic: name }];
    return html`${heading}
      <div class="bar"><h1 tabindex="-1">${name}</h1>${pausedRow(detail)}${detail.dead_letter_topic ? html`<small>dead letters go to <a href=${app.href("topic", { topic: detail.dead_letter_topic })}>${detail.dead_letter_topic}</a></small>` : nothing}
        <span class="grow"></span><span class="acts">
        ${app.can("operate") ? html`${button("Publish…", () => app.act("publish", { topic: name }), { kind: "primary" })}${button(detail.paused ? "Unpause" : "Pause", () => app.act("pause", target, !detail.paused))}${button("Create channel…", () => app.act("create", { topic: name }))}` : nothing}
        ${app.can("admin") ? html`${button("Empty…", () => app.act("lose", "empty", target))}${button("Delete…", () => app.act("lose", "delete", target))}` : nothing}</span>
      </div>
      ${(detail.warnings ?? []).map((text) => html`<p class="warning">${text}</p>`)}
      ${tiles(
        tile("In", html`${format.rate(detail.in_rate)}<small>/s</small>`),
        tile("Waiting in topic", format.count(detail.depth), { tip: "in the topic's own queue: while it is paused, or has no channel" }),
        tile("Waiting in all", format.count(detail.waiting)),
        tile("Bytes", html`${format.bytes(detail.bytes_rate)}<small>/s</small>`),
        latencyTile(detail.latency),
        detail.archive ? tile("Archive", format.bytes(detail.archive.bytes), { note: detail.archive.oldest_ms ? `since ${format.time(detail.archive.oldest_ms, { utc: app.prefs.get("utc") })}` : null, tip: `${format.count(detail.archive.message_count)} messages, ${format.count(detail.archive.dropped_count)} not kept` }) : nothing,
      )}
      ${losses(detail.losses)}
      <div class="chart-bar">${rangePicker(app)}</div>
      <div class="charts two">
        ${chart(app, "In, and out of each channel", data.history, [["in", "in"], ...channelLines(app, detail, data.histories, "out").map(([label, values]) => [`out ${label}`, values])], "/s")}
        ${chart(app, "Waiting in each channel", data.history, detail.channel_list.length ? channelLines(app, detail, data.histories, "depth") : [["topic", data.history?.series.depth]])}
      </div>
      ${tabs(app, TABS, tab)}
      ${tab === "channels"
        ? table(app, {
            id: "channels", label: "channels", columns: channelColumns(app), rows: detail.channel_list, keyOf: (row) => row.channel, fallback: "channel",
            empty: emptyState("No channel: messages wait in the topic until one exists.", app.can("operate") ? html`<p>${button("Create channel…", () => app.act("create", { topic: name }))}</p>` : nothing),
          })
        : tab === "nodes"
          ? table(app, { id: "topic-nodes", label: "nodes", columns: topicNodeColumns(app, name), rows: detail.node_list, keyOf: (row) => row.node, sortKey: "nsort", fallback: "node", rowClass: (row) => (row.state === "up" ? "" : "old"), empty: emptyState("No node has this topic now.", html`<p>${(detail.lookupds ?? []).filter((each) => each.knows).map((each) => each.address).join(", ")} still know${(detail.lookupds ?? []).length === 1 ? "s" : ""} it.</p>`) })
          : tab === "messages"
            ? lazyTab(app, "view_messages", () => import("./view_messages.js"), (module) => module.panel(app, { topic: name }))
            : lazyTab(app, "view_limits", () => import("./view_limits.js"), (module) => module.panel(app, name))}`;
  },
  onPause(app) {
    const row = app.model.topics.get(app.route.topic);
    if (row && app.can("operate")) app.act("pause", [{ topic: row.topic }], !row.paused);
  },
};

const LOSS_WORDS = [
  [/^rejected/, "refused, the queue was full"],
  [/depth|oldest/, "dropped, the queue was full"],
  [/ttl|expired/, "dropped, too old"],
  [/attempts/, "dropped after the last attempt"],
  [/^dead_letter/, "became dead letters"],
];

function losses(counts) {
  const lost = Object.entries(counts ?? {}).filter(([, count]) => count > 0);
  if (!lost.length) return nothing;
  return html`<p class="soft" id="losses">Since the start: ${lost.map(([name, count], at) => `${at ? ", " : ""}${format.count(count)} ${LOSS_WORDS.find(([pattern]) => pattern.test(name))?.[1] ?? name}`)}.</p>`;
}

// One channel.

const lossCount = (row, pattern) => {
  const found = Object.entries(row.losses ?? {}).filter(([name]) => pattern.test(name));
  return found.length ? found.reduce((sum, [, count]) => sum + count, 0) : null;
};

const channelNodeColumns = (app, target) => [
  { id: "node", label: "Node", small: true, css: "name", value: (row) => row.node, cell: (row) => html`<a href=${app.href("node", { node: row.node })}>${row.node}</a> ${row.paused ? badge("paused", "warn") : nothing}${nodeState(row)}` },
  { id: "waiting", label: "Waiting (memory + disk)", num: true, small: true, value: (row) => row.depth, cell: depthParts },
  { id: "in_flight", label: "In flight", num: true, small: true, value: (row) => row.in_flight, cell: (row) => format.count(row.in_flight) },
  { id: "deferred", label: "Deferred", num: true, value: (row) => row.deferred, cell: (row) => format.count(row.deferred) },
  { id: "requeued", label: "Requeued", num: true, value: (row) => row.requeue_count, cell: (row) => format.count(row.requeue_count) },
  { id: "timed_out", label: "Timed out", num: true, value: (row) => row.timeout_count, cell: (row) => format.count(row.timeout_count) },
  { id: "messages", label: "Messages", num: true, value: (row) => row.message_count, cell: (row) => format.count(row.message_count) },
  { id: "clients", label: "Clients", num: true, small: true, value: (row) => row.clients, cell: (row) => format.count(row.clients) },
  { id: "places", has: (row) => row.zone_local_msg_count || row.region_local_msg_count, label: "Zone / region / else", num: true, tip: "messages delivered in the node's zone, its region, and elsewhere", cell: (row) => [row.zone_local_msg_count, row.region_local_msg_count, row.global_msg_count].map((each) => format.count(each ?? 0)).join(" / ") },
  { id: "dropped", has: (row) => lossCount(row, /^(dropped|expired)/) !== null, label: "Dropped", num: true, value: (row) => lossCount(row, /^(dropped|expired)/), cell: (row) => format.count(lossCount(row, /^(dropped|expired)/)) },
  { id: "dead", has: (row) => lossCount(row, /^dead/) !== null, label: "Dead letters", num: true, value: (row) => lossCount(row, /^dead/), cell: (row) => format.count(lossCount(row, /^dead/)) },
  {
    id: "act", label: "", css: "act", cell: (row) => {
      if (!app.can("operate") || app.source.mode === "node") return nothing;
      const here = [{ ...target, node: row.node }];
      return html`${button(row.paused ? "Unpause" : "Pause", () => app.act("pause", here, !row.paused), { tip: "on this node only" })}${app.can("admin") ? button("Empty…", () => app.act("lose", "empty", here), { tip: "on this node only" }) : nothing}`;
    },
  },
];

function percentilesText(latency) {
  if (!latency?.count) return null;
  return latency.percentiles.toSorted((a, b) => a.quantile - b.quantile).map((each) => html`<span class="small">p${+(each.quantile * 100).toFixed(1)} ${format.latency(each.max)}</span>`);
}

function connectLines(app, target) {
  const { topic: name, channel: channelName } = target;
  const { info } = app.source;
  const lookupds = (app.overview.lookupds ?? []).map((each) => `"http://${each.address}"`);
  const from = lookupds.length ? `lookupd_http_addresses=[${lookupds.join(", ")}]` : `nsqd_tcp_addresses=["${info?.broadcast_address ?? "HOST"}:${info?.tcp_port ?? 4150}"]`;
  return `import nsq\n\nnsq.Reader(topic="${name}", channel="${channelName}",\n           ${from},\n           message_handler=lambda message: print(message.body) or True)\nnsq.run()`;
}

/** Ask for the clients beside the page's other figures: a node that hangs holds up only these. */
async function askClients(app, module, target) {
  const { route, memory } = app;
  if (memory.get("asks-clients")) return;
  memory.set("asks-clients", true);
  try {
    const answer = await app.source.clients({ ...target, kind: "consumer" });
    if (app.memory === memory) memory.set("channel-clients", module.clientRates(app, answer));
  } catch (error) {
    if (app.route.name === route.name && error.status !== 404) app.notify(`The clients could not be read: ${error.message}`, { kind: "bad" });
  }
  memory.delete("asks-clients");
  app.invalidate();
}

export const channel = {
  title: (app) => `${app.route.topic}/${app.route.channel}`,
  async load(app, { topic: name, channel: channelName }) {
    const module = await import("./view_nodes.js");
    askClients(app, module, { topic: name, channel: channelName });
    const [detail, history] = await Promise.all([app.source.channel(name, channelName), historyOf(app, { topic: name, channel: channelName })]);
    return { detail, history, module };
  },
  render(app, data, error) {
    const { topic: name, channel: channelName } = app.route;
    const target = { topic: name, channel: channelName };
    const heading = html`<nav class="crumbs" aria-label="breadcrumb"><a href=${app.href("topics")}>Topics</a> <a href=${app.href("topic", { topic: name })}>${name}</a></nav>`;
    if (error && !data) return html`${heading}<h1 tabindex="-1">${channelName}</h1>${errorState(app, error, notFound(app, error, target))}`;
    const detail = data?.detail;
    if (!detail) return html`${heading}<h1 tabindex="-1">${channelName}</h1><p class="soft">Loading…</p>`;
    const percentiles = percentilesText(detail.latency);
    const latencies = data.history?.series.latency_ns?.some((value) => value !== null);
    return html`${heading}
      <div class="bar"><h1 tabindex="-1">${channelName}</h1>${pausedRow(detail)}<span class="grow"></span><span class="acts">
        ${app.can("peek") ? html`<a class="button" href=${app.href("messages", target)}>Peek</a>` : nothing}
        ${app.can("operate") ? button(detail.paused ? "Unpause" : "Pause", () => app.act("pause", [target], !detail.paused)) : nothing}
        ${app.can("admin") ? html`${button("Empty…", () => app.act("lose", "empty", [target]))}${button("Delete…", () => app.act("lose", "delete", [target]))}` : nothing}</span>
      </div>
      ${tiles(
        tile("Waiting", format.count(detail.depth)),
        tile("In flight", format.count(detail.in_flight)),
        tile("Deferred", format.count(detail.deferred)),
        tile("In", html`${format.rate(detail.in_rate)}<small>/s</small>`),
        tile("Out", html`${estimated(detail)}${format.rate(detail.out_rate)}<small>/s</small>`),
        tile("Requeued", html`${format.rate(detail.requeue_rate)}<small>/s</small>`),
        tile("Timed out", html`${format.rate(detail.timeout_rate)}<small>/s</small>`),
        percentiles ? tile("Latency", percentiles, { tip: "from publish to FIN; the worst node", isDouble: true }) : nothing,
      )}
      ${losses(detail.losses)}
      <div class="chart-bar">${rangePicker(app)}</div>
      <div class="charts ${latencies ? "four" : "three"}">
        ${chart(app, "Waiting, in flight, deferred", data.history, [["waiting", "depth"], ["in flight", "in_flight"], ["deferred", "deferred"]])}
        ${chart(app, "In and out", data.history, [["in", "in"], ["out", "out"]], "/s")}
        ${chart(app, "Requeued and timed out", data.history, [["requeued", "requeue"], ["timed out", "timeout"]], "/s")}
        ${latencies ? chart(app, "Latency", data.history, [["worst", "latency_ns"]], "ns") : nothing}
      </div>
      <h2>Nodes</h2>
      ${table(app, { id: "channel-nodes", label: "nodes", columns: channelNodeColumns(app, target).filter((column) => !column.has || detail.node_list.some(column.has)), rows: detail.node_list, keyOf: (row) => row.node, sortKey: "nsort", fallback: "node", rowClass: (row) => (row.state === "up" ? "" : "old") })}
      ${app.memory.has("channel-clients")
        ? data.module.clientsTable(app, app.memory.get("channel-clients"), {
            title: "Clients", isOfOneChannel: true,
            empty: emptyState("No consumer is connected.", html`<p>With pynsq:</p>`, copyLine(app, connectLines(app, target))),
          })
        : html`<h2>Clients</h2><p class="soft">Asking…</p>`}`;
  },
  onPause(app) {
    const { topic: name, channel: channelName } = app.route;
    if (app.data?.detail && app.can("operate")) app.act("pause", [{ topic: name, channel: channelName }], !app.data.detail.paused);
  },
};


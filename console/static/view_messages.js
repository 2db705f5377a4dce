// Messages: a look that leaves them where they are; dead letters, and their way back.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import { decodeUtf8, encodeUtf8, fromBase64, hexDump, indentJson, jsonPieces, toBase64 } from "./bodies.js";
import * as format from "./format.js";
import { serverTime } from "./api.js";
import { table } from "./table.js";
import { draftOf } from "./publish.js";
import { notFound } from "./view_queues.js";
import { button, copy, copyLine, download, emptyState, openDialog, progress } from "./widgets.js";

const PLACES = [["memory", "memory"], ["disk", "disk"], ["in_flight", "in flight"], ["deferred", "deferred"]];
const COUNTS = [10, 20, 50, 100];
// Of an opened body; one piece is shown before "show all".
const PIECE_CHARACTERS = 20_000;
const PIECE_BYTES = 15_000; // 20,000 characters of base64
const PIECE_HEX_BYTES = 4096;
const PREVIEW_CHARACTERS = 200;
// Of text there are line ends and tabs, but none of these.
const CONTROLS = /[\u0000-\u0008\u000e-\u001f]/;

const REASONS = { attempts: "too many attempts", ttl: "too old" };
const NO_NEWEST = "The files there have no checksums, so all would have to be read to find their end";
const NO_REPLAY = "Where they failed is not known there";

// The bytes of messages that were opened, made once: the page renders every second.
const bodies = new WeakMap();

function bytesOf(message) {
  if (!bodies.has(message)) bodies.set(message, message.body === undefined ? fromBase64(message.body_base64 ?? "") : encodeUtf8(message.body));
  return bodies.get(message);
}

/** The first characters of a body; of what is no text, the first bytes. */
function previewOf({ body, body_base64: encoded = "" }) {
  if (body !== undefined) return body.slice(0, PREVIEW_CHARACTERS);
  const bytes = fromBase64(encoded.slice(0, 24));
  const text = decodeUtf8(bytes);
  return text !== null && !CONTROLS.test(text) ? text : `(binary) ${hexDump(bytes, 0, 16).slice(10, 57)}`;
}

const messageKey = (message) => `${message.node}/${message.id}`;

/** The queue that gave a dead letter up. */
const originName = ({ topic, channel }) => (channel ? `${topic}/${channel}` : topic);
const originReason = ({ reason }) => REASONS[reason] ?? "unknown reason";

/** What the panel keeps: the last answer, the opened and the marked messages. */
function stateOf(app, target) {
  const key = `messages ${target.topic}/${target.channel ?? ""}`;
  let state = app.memory.get(key);
  if (!state) {
    state = { target, answer: null, error: null, isBusy: false, asked: null, open: new Map(), marks: new Set() };
    app.memory.set(key, state);
  }
  // The address may have changed by the back button, or while the last look was under way.
  if (!state.isBusy && state.asked !== JSON.stringify(questionOf(app))) {
    state.open.clear();
    look(app, state);
  }
  return state;
}

/** What the address asks for. */
function questionOf({ route: { query } }) {
  const { where, count = "20", node } = query;
  return { where, count, node, order: query.order === "newest" ? "newest" : undefined };
}

async function look(app, state) {
  if (state.isBusy) return;
  state.isBusy = true;
  app.invalidate();
  const question = questionOf(app);
  state.asked = JSON.stringify(question);
  try {
    state.answer = await app.source.messages({ ...state.target, ...question });
    state.error = null;
  } catch (error) {
    state.error = error;
    if (error.status === 401) app.askToken();
  }
  state.isBusy = false;
  app.invalidate();
}

function refusal(app, error, target) {
  if (error.status === 401) return ["The token is needed to see messages.", "Sign in, then look again."];
  if (error.code === "HTTP_AUTH_TOKEN_FILE_REQUIRED") return ["This node shows no messages.", "Clients must AUTH there, so peeking needs --http-auth-token-file, and its token."];
  if (error.status === 403) return ["Your role has no right to read bodies.", "A reader, operator or admin may."];
  if (["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"].includes(error.code)) {
    const { what, back, backLabel } = notFound(app, error, target);
    return [what, html`<a href=${back}>${backLabel}</a>`];
  }
  if (error.status === 404) return ["It is not there.", error.message];
  if (error.code === "NEWEST_UNKNOWN") return ["The newest messages can't be found.", `${NO_NEWEST}. Look at the oldest.`];
  return ["The messages could not be read.", error.message];
}

function* textPieces(text) {
  for (let at = 0; at < text.length; ) {
    // At the end of a line if there is one, as each piece begins a line.
    const newline = text.lastIndexOf("\n", at + PIECE_CHARACTERS);
    const end = newline > at && text.length - at > PIECE_CHARACTERS ? newline + 1 : at + PIECE_CHARACTERS;
    yield text.slice(at, end);
    at = end;
  }
}

/** The lines of a body in its form, piece by piece. */
function* piecesOf(message, { form }) {
  const bytes = bytesOf(message);
  if (form === "hex") {
    for (let at = 0; at < bytes.length; at += PIECE_HEX_BYTES) yield hexDump(bytes, at, at + PIECE_HEX_BYTES);
  } else if (form === "base64") {
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield toBase64(bytes.subarray(at, at + PIECE_BYTES));
  } else if (form === "json") {
    const text = decodeUtf8(bytes);
    const pieces = jsonPieces(text, PIECE_CHARACTERS);
    let step;
    for (step = pieces.next(); !step.done; step = pieces.next()) yield* textPieces(step.value);
    yield* textPieces(step.value.rest);
    // Cut off or broken further on: the rest stays as it came.
    if (!step.value.isJson) yield* textPieces(text.slice(step.value.position).trim());
  } else {
    yield* textPieces(decodeUtf8(bytes));
  }
}

/** Make what an opened message shows: one piece, or all, one after the other so that nothing freezes. */
async function layOut(app, message, view, changes) {
  const turn = {};
  Object.assign(view, { isAll: false, isCut: false, parts: [], turn }, changes);
  const visible = view.form === "hex" ? (piece) => piece : (piece) => piece.split("\n").map(format.visible).join("\n");
  for (const piece of piecesOf(message, view)) {
    if (view.parts.length) {
      if (!view.isAll) {
        view.isCut = true;
        break;
      }
      await new Promise((resolve) => setTimeout(resolve));
      if (view.turn !== turn) return; // another form was chosen meanwhile
    }
    view.parts.push(visible(piece));
    app.invalidate();
  }
  app.invalidate();
}

const bodyView = (app, message, view) => html`<pre class="message-body ${view.wraps ? "wrap" : ""}" tabindex="0" dir="auto">${view.parts.map((part) => html`<span class="part">${part}</span>`)}</pre>
    ${view.isCut ? html`<p class="soft">Cut. <button type="button" @click=${() => layOut(app, message, view, { isAll: true })}>Show all</button></p>` : nothing}`;

function openedMessage(app, state, message, view) {
  const bytes = bytesOf(message);
  const forms = [["json", "JSON", view.isJson], ["text", "text", view.isText], ["hex", "hex", true], ["base64", "base64", true]];
  const { origin } = message;
  return html`<div class="bar">
      <div class="range" role="group" aria-label="how to show the body">${forms.filter(([, , fits]) => fits).map(([id, label]) => html`<button type="button" aria-pressed=${view.form === id ? "true" : "false"} @click=${() => layOut(app, message, view, { form: id })}>${label}</button>`)}</div>
      <label class="check"><input type="checkbox" .checked=${view.wraps} @change=${(event) => {
        view.wraps = event.target.checked;
        app.invalidate();
      }} /> wrap</label>
      ${view.isText ? button("Copy", () => copy(app, decodeUtf8(bytes))) : nothing}
      ${button("Save", () => download(`${message.id}.bin`, [bytes]))}
      ${app.can("operate") ? button("Publish a copy…", () => actions.publish(app, draftOf(state.target.topic, bytes))) : nothing}
      <span class="soft">${message.id} · published ${format.time(message.timestamp_ms, { utc: app.prefs.get("utc"), millis: true })} · ${format.plural(message.attempts, "attempt")} · ${format.bytes(message.size)}</span>
    </div>
    ${origin ? originList(app, message) : nothing}
    ${message.cut ? html`<p class="warning">Only the first ${format.bytes(bytes.length)} of ${format.bytes(message.size)}. ${app.source.message ? button("Load it whole", () => loadWhole(app, state, message)) : nothing}</p>` : nothing}
    ${bodyView(app, message, view)}`;
}

/** Where a dead letter comes from. Its own time is that of its failing. */
function originList(app, { origin, timestamp_ms: failedMs }) {
  const { topic, channel } = origin;
  const at = (ms) => format.time(ms, { utc: app.prefs.get("utc"), millis: true });
  return html`<dl class="origin">
    <div><dt>Failed in</dt><dd><a href=${channel ? app.href("channel", { topic, channel }) : app.href("topic", { topic })}>${originName(origin)}</a></dd></div>
    <div><dt>Reason</dt><dd>${originReason(origin)}</dd></div>
    <div><dt>Attempts</dt><dd>${format.count(origin.attempts ?? 0)}</dd></div>
    <div><dt>Failed at</dt><dd>${at(failedMs)}</dd></div>
    ${origin.timestamp_ms ? html`<div><dt>Published at</dt><dd>${at(origin.timestamp_ms)}</dd></div>` : nothing}
    ${origin.id ? html`<div><dt>Former id</dt><dd><code>${origin.id}</code></dd></div>` : nothing}
  </dl>`;
}

/** One line: how many of the messages failed where, and why. */
function originSummary(messages) {
  const counts = new Map();
  for (const { origin } of messages) {
    if (!origin) continue;
    const name = `${originName(origin)} (${originReason(origin)})`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  if (!counts.size) return nothing;
  const parts = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([name, count]) => `${format.count(count)} of ${name}`);
  return html`<p id="origins">Failed: ${parts.join(", ")}${counts.size > 6 ? ", …" : ""}.</p>`;
}

async function loadWhole(app, state, message) {
  try {
    const whole = await app.source.message({ ...state.target, node: message.node, id: message.id, order: questionOf(app).order });
    Object.assign(message, { body: undefined, body_base64: undefined }, whole.message ?? whole, { cut: false });
    bodies.delete(message);
    const view = state.open.get(messageKey(message));
    if (view) layOut(app, message, view);
  } catch (error) {
    app.notify(error.status === 404 ? "The message is not there any more." : error.message, { kind: "bad" });
  }
  app.invalidate();
}

function toggle(app, state, message) {
  const key = messageKey(message);
  if (state.open.has(key)) state.open.delete(key);
  else {
    const text = decodeUtf8(bytesOf(message));
    const isJson = text !== null && indentJson(text, PIECE_CHARACTERS) !== null;
    const view = { form: isJson ? "json" : text === null ? "hex" : "text", isJson, isText: text !== null, wraps: true };
    state.open.set(key, view);
    layOut(app, message, view);
  }
  app.invalidate();
}

function messageRow(app, state, message) {
  const key = messageKey(message);
  const view = state.open.get(key);
  const left = message.timeout_ms !== undefined ? `times out in ${format.duration(message.timeout_ms / 1000)}` : message.due_ms !== undefined ? `due in ${format.duration(message.due_ms / 1000)}` : "";
  const age = serverTime() - message.timestamp_ms / 1000;
  return html`<li data-id=${message.id}><div class="message-line ${message.origin ? "dead" : ""}">
      <input type="checkbox" aria-label="mark ${message.id}" .checked=${state.marks.has(key)} @change=${(event) => {
        if (event.target.checked) state.marks.add(key);
        else state.marks.delete(key);
        app.invalidate();
      }} />
      <span>${PLACES.find(([id]) => id === message.where)?.[1] ?? message.where}</span>
      <span class="time" title="published">${format.time(message.timestamp_ms, { utc: app.prefs.get("utc"), millis: true })} <small class="soft">${age > 0 ? format.duration(age) : ""}</small></span>
      <span class="id"><code>${message.id}</code></span>
      <span class="attempts">${format.plural(message.attempts, "attempt")}</span>
      <span>${format.bytes(message.size)}</span>
      ${message.origin ? html`<span class="from" title="failed in ${originName(message.origin)}: ${originReason(message.origin)}">${originName(message.origin)} · ${message.origin.reason === "ttl" ? "too old" : format.plural(message.origin.attempts ?? 0, "attempt")}</span>` : nothing}
      <button type="button" class="preview" aria-expanded=${view ? "true" : "false"} @click=${() => toggle(app, state, message)}>${view ? "▾" : "▸"} <bdi>${format.visible(previewOf(message))}</bdi></button>
      <span class="left soft">${left}</span>
    </div>${view ? openedMessage(app, state, message, view) : nothing}</li>`;
}

function saveAll(state, messages) {
  const lines = messages.map((message) => `${JSON.stringify({ ...message, timestamp: String(message.timestamp) })}\n`);
  download(`${state.target.topic}${state.target.channel ? `.${state.target.channel}` : ""}.ndjson`, lines, "application/x-ndjson");
}

/** The messages of a topic's or channel's queue. */
export function panel(app, target) {
  if (!app.can("peek")) return emptyState("Your role has no right to read bodies.");
  const lacks = app.source.lacks("peek");
  if (lacks) return emptyState("No node here lets one look at messages.", html`<p>${lacks}.</p>`);
  const state = stateOf(app, target);
  const { where = "", count = "20", find = "", node = "", order = "" } = app.route.query;
  const isNewest = order === "newest";
  const lacksNewest = app.source.lacks("peek_newest");
  const chosen = new Set(where ? where.split(",") : PLACES.map(([id]) => id));
  const change = (changes) => app.setQuery(changes);
  const setPlace = (id, isOn) => {
    if (isOn) chosen.add(id);
    else chosen.delete(id);
    change({ where: chosen.size && chosen.size < PLACES.length ? [...chosen].join(",") : null });
  };
  const all = state.answer?.messages ?? [];
  const wanted = find.toLowerCase();
  const messages = wanted ? all.filter((message) => (message.body ?? "").toLowerCase().includes(wanted)) : all;
  const marked = all.filter((message) => state.marks.has(messageKey(message)));
  const nodes = app.source.nodeNames ?? [];
  const asked = state.answer?.node_list ?? [];
  const failed = asked.filter((each) => each.error);
  const isUnseen = failed.length > 0 && failed.length === asked.length;
  return html`<div class="bar">
      ${nodes.length > 1 ? html`<label>Node <select @change=${(event) => change({ node: event.target.value })}><option value="">all</option>${nodes.map((name) => html`<option ?selected=${name === node}>${name}</option>`)}</select></label>` : nothing}
      <fieldset><legend class="hidden">where</legend>${PLACES.map(([id, label]) => html`<label><input type="checkbox" .checked=${chosen.has(id)} @change=${(event) => setPlace(id, event.target.checked)} /> ${label}</label>`)}</fieldset>
      <label>Count <select @change=${(event) => change({ count: event.target.value })}>${COUNTS.map((each) => html`<option ?selected=${String(each) === count}>${each}</option>`)}</select></label>
      <label title=${lacksNewest ?? nothing}>Order <select id="order" ?disabled=${Boolean(lacksNewest)} @change=${(event) => change({ order: event.target.value || null })}><option value="">oldest first</option><option value="newest" ?selected=${isNewest}>newest first</option></select></label>
      ${button(state.isBusy ? "Looking…" : "Look again", () => look(app, state), { id: "look" })}
      <input type="search" placeholder="Find in bodies" aria-label="find in bodies" .value=${find} @input=${(event) => app.setQuery({ find: event.target.value }, { isTyping: true })} />
      ${messages.length ? button("Download NDJSON", () => saveAll(state, marked.length ? marked : messages)) : nothing}
      ${marked.length && app.can("operate") ? moveButtons(app, state, marked) : nothing}
    </div>
    <p class="soft">A look only: nothing was taken, attempted or reordered. At most 100 messages, from the ${isNewest ? "back" : "front"} of the queue.</p>
    ${failed.map((each) => html`<p class="warning">${each.node}: ${each.error.includes("NEWEST_UNKNOWN") ? NO_NEWEST : each.error.replace(/^NOT_SUPPORTED: /, "")}</p>`)}
    ${state.error
      ? emptyState(...refusal(app, state.error, target).map((text, at) => (at ? html`<p>${text}</p>` : text)))
      : !state.answer
        ? html`<p class="soft">Looking…</p>`
        : messages.length
          ? html`${originSummary(messages)}<ul class="messages" aria-label="messages">${messages.map((message) => messageRow(app, state, message))}</ul>`
          : isUnseen
            ? emptyState("No node could be looked into.", html`<p>What waits there is not known.</p>`)
            : emptyState(all.length ? "No body has that in it." : "Nothing waits here right now.", target.channel === undefined && !all.length ? html`<p>The queue of a topic is empty while it has channels: look into one of them.</p>` : nothing)}`;
}

function moveButtons(app, state, marked) {
  const ids = marked.map((message) => message.id);
  const node = marked[0].node;
  const isOneNode = marked.every((message) => message.node === node);
  const several = app.route.query.order === "newest" ? "Only messages at the front can be moved or dropped: look at the oldest" : isOneNode ? null : "Mark messages of one node only";
  const reason = several ?? app.source.lacks("move", node);
  const hasOrigins = marked.some((message) => message.origin);
  const { topic, channel } = state.target;
  const origin = app.model.topics.get(topic)?.dead_letters_of;
  return html`${button("Replay marked…", () => replay(app, { topic, channel, node, ids, to: origin ?? marked.find((message) => message.origin)?.origin.topic ?? topic, waiting: ids.length, noReplay: hasOrigins ? null : NO_REPLAY, done: () => { state.marks.clear(); look(app, state); } }), { reason })}
    ${app.can("admin") ? button("Drop marked…", async () => {
      const word = channel ?? topic;
      const isSure = await actions.confirmTyped(app, { title: `Drop ${format.plural(ids.length, "message")}`, word, button: "Drop", body: () => html`<p class="loss"><b>${format.plural(ids.length, "message")}</b> of ${topic}${channel === undefined ? "" : `/${channel}`} will be gone for good.</p>` });
      if (isSure && (await actions.run(app, "drop", [{ topic, channel, node }], { confirm: word, params: { ids } }))) {
        state.marks.clear();
        look(app, state);
      }
    }, { reason: several ?? app.source.lacks("drop", node) }) : nothing}`;
}

export const channelMessages = {
  title: (app) => `Messages of ${app.route.topic}/${app.route.channel}`,
  render(app) {
    const { topic, channel } = app.route;
    return html`<nav class="crumbs" aria-label="breadcrumb"><a href=${app.href("topics")}>Topics</a> <a href=${app.href("topic", { topic })}>${topic}</a> <a href=${app.href("channel", { topic, channel })}>${channel}</a></nav>
      <h1 tabindex="-1">Messages</h1>${panel(app, { topic, channel })}`;
  },
};

// Dead letters.

/** What a replay left where it was: how many, and why. */
function keptText(outcomes) {
  const reasons = { ORIGIN_UNKNOWN: "it is not known where they failed", CHANNEL_NOT_FOUND: "the channel is gone:", TOPIC_NOT_FOUND: "the topic is gone:" };
  return outcomes.flatMap((outcome) => Object.entries(outcome.kept ?? {}).map(([reason, count]) => {
    const [code, name = ""] = reason.split(" ");
    return `${format.plural(count, "message")} stay${count === 1 ? "s" : ""} on ${outcome.node}: ${reasons[code] ?? code} ${name}`.trim().concat(".");
  }));
}

/**
 * Ask how many go where, then move them, and show how far it is.
 * noReplay: why none can go to the channel it failed in, or null; `done` is called afterwards.
 */
function replay(app, settings) {
  const { topic, channel, node, ids, to, waiting, noReplay = null, done } = settings;
  return openDialog(app, `Replay ${ids ? format.plural(ids.length, "message") : "messages"} of ${topic}`, (dialog) => {
    const { state } = dialog;
    const start = async (event) => {
      event.preventDefault();
      if (state.isRunning) return;
      const form = new FormData(event.target);
      const action = form.get("way") === "origin" ? "replay" : "move";
      const params = { rate: Number(form.get("rate")) || undefined };
      if (ids) params.ids = ids;
      else params.count = Number(form.get("count"));
      if (action === "move") {
        params.to = form.get("to");
        if (form.get("to_channel")) params.to_channel = form.get("to_channel");
      }
      state.controller = new AbortController();
      Object.assign(state, { isRunning: true, wanted: ids?.length ?? params.count, moved: 0, errors: [], kept: [] });
      dialog.update();
      const target = { topic, channel };
      if (node) target.node = node;
      try {
        const result = await app.source.act(action, [target], { params, signal: state.controller.signal, onProgress: (outcomes) => {
          state.moved = outcomes.reduce((sum, outcome) => sum + (outcome.moved ?? 0), 0);
          if (dialog.element.isConnected) dialog.update();
        } });
        state.moved = result.moved ?? result.outcomes.reduce((sum, outcome) => sum + (outcome.moved ?? 0), 0);
        state.kept = keptText(result.outcomes);
        state.errors = result.outcomes.filter((outcome) => outcome.state === "failed").map((outcome) => `${outcome.node}: ${outcome.text}`);
      } catch (error) {
        if (error.status === 401) {
          dialog.done(null);
          if (await actions.signIn(app)) replay(app, settings);
          return;
        }
        state.errors = [error.message];
      }
      Object.assign(state, { isRunning: false, isDone: true });
      if (dialog.element.isConnected) dialog.update();
      app.refresh();
      done?.();
    };
    if (state.isDone) {
      return html`<p id="replayed" role="alert"><b>${format.count(state.moved)} moved</b> of ${format.count(state.wanted)}.</p>
        ${state.kept.map((text) => html`<p class="kept">${text}</p>`)}
        ${state.errors.map((text) => html`<p class="error">${text}</p>`)}
        <footer>${state.errors.length ? button("Try the rest again", () => { dialog.done(null); replay(app, { ...settings, waiting: waiting - state.moved }); }) : nothing}${button("Close", () => dialog.done(true), { kind: "primary" })}</footer>`;
    }
    if (state.isRunning) {
      return html`<p>${format.count(state.moved)} of ${format.count(state.wanted)} moved.</p>${progress("moved", state.wanted, state.moved)}
        <footer>${button("Stop", () => state.controller.abort())}</footer>`;
    }
    const names = [...app.model.topics.keys()];
    const destination = state.to ?? to;
    const channels = app.model.topics.get(destination)?.list ?? [];
    const lacksReplay = app.source.lacks("replay", node) ?? noReplay;
    const way = state.way ?? (lacksReplay ? "topic" : "origin");
    const choose = (event) => {
      state.way = event.target.value;
      dialog.update();
    };
    return html`<form method="dialog" @submit=${start}>
      <fieldset class="ways"><legend class="hidden">where to</legend>
        <label class="check" title=${lacksReplay ?? nothing}><input type="radio" name="way" value="origin" ?autofocus=${way === "origin"} .checked=${way === "origin"} ?disabled=${Boolean(lacksReplay)} @change=${choose} /> To the channel each failed in ${lacksReplay ? html`<small class="soft">${lacksReplay}</small>` : nothing}</label>
        <label class="check"><input type="radio" name="way" value="topic" ?autofocus=${way === "topic"} .checked=${way === "topic"} @change=${choose} /> To a topic or channel</label>
      </fieldset>
      <div class="row">
        ${ids ? nothing : html`<label>Messages from the front <input name="count" type="number" min="1" max="1000000" required value=${Math.max(1, waiting)} /></label>`}
        ${ids ? nothing : html`<label>At most per second <input name="rate" type="number" min="1" value="500" /></label>`}
      </div>
      ${way === "origin" ? nothing : html`<label>To topic <select name="to" @change=${(event) => { state.to = event.target.value; dialog.update(); }}>${names.map((name) => html`<option ?selected=${name === destination}>${name}</option>`)}</select></label>
        <label>To channel <select name="to_channel"><option value="">all channels</option>${channels.map((each) => html`<option>${each.channel}</option>`)}</select></label>`}
      <p>${way === "origin" ? "Only the channel that gave a message up gets it again, with attempts 0. A message stays where it is if its channel is gone, or if it is not known where it failed." : `All channels of ${destination} get them again, or the chosen one, with attempts 0.`} A message is published there first, and deleted here only when it is safe there: a crash may bring it twice, but loses none.</p>
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="primary">Replay</button></footer>
    </form>`;
  });
}

function limitsText(limits) {
  if (!limits) return format.NONE;
  const parts = [];
  const value = (name) => limits[name]?.value;
  if (value("max_attempts")) parts.push(format.plural(value("max_attempts"), "attempt"));
  if (value("msg_ttl") && value("msg_ttl") !== "0s") parts.push(`ttl ${value("msg_ttl")}`);
  if (value("max_depth_policy") === "drop-oldest" && value("max_depth")) parts.push(`depth ${format.count(value("max_depth"))}`);
  return parts.join(", ") || "none";
}

// The figure before the name, which may be cut.
function sinceStart({ channels, dead_lettered_count: count }) {
  const text = channels.map((each) => `${format.count(each.dead_lettered_count)} of ${each.channel}`).join(", ");
  return text ? html`<div class="named" title=${text}>${text}</div>` : format.count(count);
}

const deadColumns = (app) => [
  { id: "topic", label: "Topic", small: true, css: "name", value: (row) => row.topic, cell: (row) => html`<a href=${app.href("topic", { topic: row.topic })} title=${row.topic}>${row.topic}</a>` },
  { id: "dead", label: "Dead-letter topic", small: true, value: (row) => row.dead_letter_topic, css: "pair", cell: (row) => html`<div class="named">${row.exists ? html`<a href=${app.href("topic", { topic: row.dead_letter_topic })} title=${row.dead_letter_topic}>${row.dead_letter_topic}</a>` : html`<span>${row.dead_letter_topic}</span> <small class="soft">not yet</small>`}</div>` },
  { id: "waiting", label: "Waiting", num: true, small: true, value: (row) => row.waiting, cell: (row) => format.count(row.waiting) },
  { id: "since", label: "Since start", value: (row) => row.dead_lettered_count, css: "pair", cell: sinceStart },
  { id: "limits", label: "Limits that send there", cell: (row) => limitsText(row.limits) },
  { id: "clients", label: "Consumers", num: true, value: (row) => row.clients, cell: (row) => (row.clients ? format.count(row.clients) : "none") },
  {
    id: "act", label: "", css: "act", cell: (row) => {
      const topic = row.dead_letter_topic;
      if (!row.exists) return nothing;
      const reason = row.waiting ? app.source.lacks("move") : "There is none to replay";
      return html`${app.can("peek") ? html`<a class="button" href=${app.href("topic", { topic, query: { tab: "messages" } })}>Peek</a>` : nothing}
        ${app.can("operate") ? button("Replay…", () => replay(app, { topic, to: row.topic, waiting: row.waiting }), { reason }) : nothing}
        ${app.can("admin") ? button("Drop…", () => actions.lose(app, "empty", [{ topic }]), { reason: row.waiting ? null : "There is none to drop" }) : nothing}`;
    },
  },
];

export const deadLetters = {
  title: () => "Dead letters",
  load: (app) => app.source.deadLetters(),
  render(app, data, error) {
    if (error && !data) return html`<h1 tabindex="-1">Dead letters</h1>${emptyState("They could not be read.", error.message)}`;
    if (!data) return html`<h1 tabindex="-1">Dead letters</h1><p class="soft">Loading…</p>`;
    return html`<h1 tabindex="-1">Dead letters</h1>
      ${data.unsupported_nodes ? html`<p class="warning">${format.plural(data.unsupported_nodes, "node")} ${data.unsupported_nodes === 1 ? "does" : "do"} not tell where dead letters go.</p>` : nothing}
      ${table(app, {
        id: "dead-letters", label: "dead letters", columns: deadColumns(app), rows: data.rows, keyOf: (row) => row.topic, fallback: "-waiting",
        empty: emptyState("No dead letters.", html`<p>They appear with a limit of attempts or age, and a suffix for their topic:</p>`, copyLine(app, "nsqd --max-attempts=5 --dead-letter-topic-suffix=.dead"), copyLine(app, "nsqd --msg-ttl=1h30m --dead-letter-topic-suffix=.dead"), html`<p>or for one topic, under its Limits.</p>`),
      })}`;
  },
};

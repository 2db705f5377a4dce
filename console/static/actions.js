// What an operator does to queues and nodes: the questions before it, the outcome after it.
//
// Pause and unpause act at once and can be undone. What loses messages says how many, as of now,
// and wants the name typed (several at once: their number); its button waits a second.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as format from "./format.js";
import { invalidName, keyOf } from "./model.js";
import { invalid, openDialog } from "./widgets.js";

const WAIT_MS = 1000;
const PAST = { pause: "paused", unpause: "unpaused", empty: "emptied", delete: "deleted", create: "created", tombstone: "hidden from discovery", drain: "draining", set_limits: "set", close_client: "closed", drop: "dropped", move: "moved", replay: "replayed", set_log_level: "set" };

export const nameOf = ({ topic, channel, node }) => (topic === undefined ? node : keyOf(topic, channel));
const withNode = (target) => (target.topic !== undefined && target.node ? `${nameOf(target)} on ${target.node}` : nameOf(target));

/** Do it and tell the outcome; resolves with whether all went well. */
export async function run(app, action, targets, { confirm, params, onProgress, signal, isQuiet } = {}) {
  let result;
  try {
    result = await app.source.act(action, targets, { confirm, params, onProgress, signal });
  } catch (error) {
    if (error.status === 401) {
      app.dialog?.done(null);
      if (await signIn(app)) return run(app, action, targets, { confirm, params, onProgress, signal, isQuiet });
      return null;
    }
    app.notify(`Not done: ${error.message}`, { kind: "bad" });
    return null;
  }
  app.refresh();
  const failed = result.outcomes.filter((outcome) => outcome.state === "failed");
  if (failed.length) showOutcomes(app, action, targets, result, { params });
  else if (!isQuiet) app.notify(`${targets.length === 1 ? withNode(targets[0]) : format.plural(targets.length, "target")} ${PAST[action]}.`);
  return { ...result, failed };
}

function showOutcomes(app, action, targets, result, { params }) {
  const failed = result.outcomes.filter((outcome) => outcome.state === "failed");
  const done = result.outcomes.length - failed.length;
  const rest = targets.filter((target) => failed.some((outcome) => outcome.topic === target.topic && outcome.channel === target.channel && (!target.node || target.node === outcome.node)));
  const isOne = result.outcomes.length === 1;
  openDialog(app, isOne ? "Not done" : `${format.count(done)} done, ${format.count(failed.length)} failed`, (dialog) => html`
    <ul class="outcomes">${failed.slice(0, 100).map((outcome) => html`<li><b>${nameOf(outcome)}</b> ${outcome.node ?? outcome.lookupd ?? ""}: ${outcome.text}</li>`)}</ul>
    <footer><button type="button" @click=${() => dialog.done(null)}>Close</button>
    <button type="button" class="primary" @click=${async () => {
      dialog.done(null);
      run(app, action, rest, { params, confirm: rest.length > 1 ? rest.length : rest[0]?.channel ?? rest[0]?.topic ?? rest[0]?.node });
    }}>${isOne ? "Try again" : "Try the rest again"}</button></footer>`);
}

/** Pause or unpause at once. */
export async function pause(app, targets, isPausing) {
  const [action, back] = isPausing ? ["pause", "unpause"] : ["unpause", "pause"];
  const confirm = targets.length > 1 ? targets.length : undefined;
  const result = await run(app, action, targets, { confirm, isQuiet: true });
  if (!result || result.failed.length) return;
  const what = targets.length === 1 ? withNode(targets[0]) : format.plural(targets.length, "queue");
  app.notify(`${what} ${PAST[action]}.`, { undo: () => run(app, back, targets, { confirm }) });
}

/** What is in the targets right now: messages, consumers, nodes. */
async function countOf(app, targets) {
  const sum = { messages: 0, clients: 0, nodes: 0, silent: 0, channels: [] };
  const details = await Promise.all(targets.slice(0, 20).map((target) => (target.channel === undefined ? app.source.topic(target.topic, { fresh: true }) : app.source.channel(target.topic, target.channel, { fresh: true })).catch(() => null)));
  targets.forEach((target, at) => {
    const row = details[at] ?? app.model.topics.get(keyOf(target.topic, target.channel)) ?? app.model.rows.get(keyOf(target.topic, target.channel));
    if (!row) return;
    const part = target.node ? details[at]?.node_list.find((each) => each.node === target.node) ?? row : row;
    sum.messages += (part.waiting ?? part.depth) + (part.in_flight ?? 0) + (part.deferred ?? 0);
    sum.own = (sum.own ?? 0) + part.depth;
    sum.clients += part.clients ?? row.clients ?? 0;
    sum.nodes = Math.max(sum.nodes, target.node ? 1 : row.nodes);
    const silent = details[at]?.node_list.filter((each) => each.state !== "up" && (!target.node || each.node === target.node)).length;
    sum.silent = Math.max(sum.silent, silent ?? row.stale);
    if (target.channel === undefined) sum.channels.push(...(details[at]?.channel_list ?? row.list ?? []));
  });
  return sum;
}

/** Empty or delete queues, after asking. Resolves with whether it was done. */
export async function lose(app, action, targets) {
  const isDeleting = action === "delete";
  const one = targets.length === 1 ? targets[0] : null;
  const word = one ? one.channel ?? one.topic : String(targets.length);
  const title = `${isDeleting ? "Delete" : "Empty"} ${one ? `${one.channel === undefined ? "topic" : "channel"} ${withNode(one)}` : format.plural(targets.length, "queue")}`;
  let facts = null;
  const done = await confirmTyped(app, {
    title,
    word,
    button: isDeleting ? "Delete" : "Empty",
    load: async () => {
      facts = await countOf(app, targets);
    },
    // Emptying a topic leaves its channels alone, as in NSQ.
    isHarmless: () => !isDeleting && one && facts !== null && (one.channel === undefined ? facts.own : facts.messages) === 0,
    body: () => {
      if (!facts) return html`<p class="soft">Counting what is there…</p>`;
      const topicsOnly = targets.every((target) => target.channel === undefined);
      const messages = !isDeleting && topicsOnly ? facts.own : facts.messages;
      const channels = [...new Set(facts.channels.map((channel) => channel.channel))];
      if (isDeleting && !facts.nodes) return html`<p class="loss">No node is known to have it; nsqlookupd forgets it.</p>`;
      return html`<p class="loss"><b>${format.plural(messages, "message")}</b> ${messages === 1 ? "is" : "are"} there now, on ${format.plural(facts.nodes, "node")}. ${messages ? `${messages === 1 ? "It" : "They"} will be gone for good.` : ""}</p>
        ${facts.silent ? html`<p><b>${format.plural(facts.silent, "node")}</b> ${facts.silent === 1 ? "does" : "do"} not answer: the last figures are counted.</p>` : nothing}
        ${isDeleting && channels.length ? html`<p>${format.plural(channels.length, "channel")} will go too: ${channels.slice(0, 12).join(", ")}${channels.length > 12 ? ", …" : ""}</p>` : nothing}
        ${!isDeleting && topicsOnly && channels.length ? html`<p>${one ? "Its" : "Their"} channels keep their own messages: empty them one by one.</p>` : nothing}
        ${facts.clients ? html`<p><b>${format.plural(facts.clients, "consumer")}</b> ${facts.clients === 1 ? "is" : "are"} connected${isDeleting ? " and will be cut off; a consumer that connects again creates it anew" : ""}.</p>` : nothing}
        ${one ? nothing : html`<ul class="outcomes">${targets.slice(0, 20).map((target) => html`<li>${withNode(target)}</li>`)}${targets.length > 20 ? html`<li>…</li>` : nothing}</ul>`}`;
    },
  });
  if (!done) return false;
  const result = await run(app, action, targets, { confirm: one ? word : targets.length });
  if (result && !result.failed.length && isDeleting && one && !one.node && app.route.topic === one.topic) app.go(one.channel === undefined ? app.href("overview") : app.href("topic", { topic: one.topic }));
  return Boolean(result);
}

/** Ask for a name to be typed before something is lost. Resolves with true, or null. */
export function confirmTyped(app, { title, word, button, body, load, isHarmless = () => false }) {
  const openedAt = performance.now();
  return openDialog(app, title, (dialog) => {
    const { state } = dialog;
    if (!state.isAsked) {
      state.isAsked = true;
      state.isLoaded = !load;
      load?.().finally(() => {
        state.isLoaded = true;
        dialog.update();
      });
      setTimeout(() => dialog.element.isConnected && dialog.update(), WAIT_MS + 20);
    }
    const needsName = !isHarmless();
    const isReady = state.isLoaded && performance.now() - openedAt >= WAIT_MS && (!needsName || state.typed === word);
    return html`<form method="dialog" @submit=${(event) => {
      event.preventDefault();
      if (isReady) dialog.done(true);
    }}>
      ${body()}
      ${needsName
        ? html`<label><span>Type <b class="word">${word}</b> to go on</span> <input autofocus name="confirm" autocomplete="off" spellcheck="false" @input=${(event) => {
            state.typed = event.target.value;
            dialog.update();
          }} /></label>`
        : nothing}
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="danger" id="confirm" ?disabled=${!isReady}>${button}</button></footer>
    </form>`;
  });
}

/** Ask once, for what can be mended. */
export function confirmOnce(app, { title, body, button }) {
  return openDialog(app, title, (dialog) => html`<form method="dialog" @submit=${(event) => {
    event.preventDefault();
    dialog.done(true);
  }}>${body}<footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="danger" id="confirm" autofocus>${button}</button></footer></form>`);
}

/** The form for the token; resolves with whether somebody is signed in now. */
export async function signIn(app) {
  const done = await openDialog(app, "Sign in", (dialog) => {
    const { state } = dialog;
    return html`<form method="dialog" @submit=${async (event) => {
      event.preventDefault();
      if (state.isBusy) return;
      state.isBusy = true;
      try {
        await app.source.signIn(new FormData(event.target).get("token").trim());
        dialog.done(true);
      } catch (error) {
        state.error = error.status === 401 ? "This token is not the right one." : error.status === 429 ? "Too many wrong tokens: wait a minute." : error.message;
      }
      state.isBusy = false;
      if (dialog.element.isConnected) dialog.fail();
    }}>
      <p>${app.source.mode === "node" ? html`This nsqd was started with <code>--http-auth-token-file</code>: changes and messages need its token.` : html`This nsqadmin was started with <code>--http-auth-token-file</code>.`}</p>
      <label>Token <input type="password" name="token" autocomplete="off" required autofocus aria-invalid=${invalid(state.error)} aria-describedby="token-error" /></label>
      <p id="token-error" class="error" role="alert">${state.error ?? ""}</p>
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="primary">Sign in</button></footer>
    </form>`;
  });
  if (done) {
    app.me = app.source.me;
    app.refresh();
  }
  return done;
}

/** Publish by hand; see publish.js. */
export async function publish(app, draft) {
  return (await import("./publish.js")).publish(app, draft);
}

/** Create a topic, or a channel of `topic`. */
export function create(app, { topic } = {}) {
  return openDialog(app, topic === undefined ? "Create a topic" : `Create a channel of ${topic}`, (dialog) => {
    const { state } = dialog;
    const submit = async (event) => {
      event.preventDefault();
      if (state.isBusy) return;
      const form = new FormData(event.target);
      const target = { topic: topic ?? form.get("topic").trim() };
      const channel = form.get("channel").trim();
      if (channel || topic !== undefined) target.channel = channel;
      state.errors = { topic: invalidName(target.topic), channel: target.channel === undefined ? null : invalidName(channel) };
      if (!Object.values(state.errors).some(Boolean)) {
        state.isBusy = true;
        dialog.done(target);
        await run(app, "create", [target]);
        return;
      }
      dialog.fail();
    };
    const errors = state.errors ?? {};
    return html`<form method="dialog" @submit=${submit}>
      ${topic === undefined ? html`<label>Topic <input name="topic" autofocus autocomplete="off" spellcheck="false" aria-invalid=${invalid(errors.topic)} aria-describedby="error-topic" /><span class="error" id="error-topic" role="alert">${errors.topic ?? ""}</span></label>` : nothing}
      <label><span>Channel ${topic === undefined ? html`<small>(or none)</small>` : nothing}</span><input name="channel" ?autofocus=${topic !== undefined} autocomplete="off" spellcheck="false" aria-invalid=${invalid(errors.channel)} aria-describedby="error-channel" /><span class="error" id="error-channel" role="alert">${errors.channel ?? ""}</span></label>
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="primary">Create</button></footer>
    </form>`;
  });
}

// The limits of a topic: shown, compared between nodes, set on all of them.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import * as actions from "./actions.js";
import * as format from "./format.js";
import { badge, button, emptyState, invalid, openDialog } from "./widgets.js";

const WORDS = {
  max_depth: ["Messages in a queue", "number; 0 is no limit"],
  max_depth_bytes: ["Bytes in a queue", "number; 0 is no limit"],
  max_depth_policy: ["When a queue is full", "reject or drop-oldest"],
  msg_ttl: ["Age of a message", "such as 1h30m; 0s is no limit"],
  max_attempts: ["Attempts of a message", "number; 0 is no limit"],
  dead_letter_topic_suffix: ["Suffix of the dead-letter topic", "such as .dead; empty for none"],
};

function stateOf(app, topic) {
  const key = `limits ${topic}`;
  let state = app.memory.get(key);
  if (!state) {
    state = { answer: null, error: null };
    app.memory.set(key, state);
    read(app, topic, state);
  }
  return state;
}

async function read(app, topic, state) {
  try {
    state.answer = await app.source.limits(topic);
    state.error = null;
  } catch (error) {
    state.error = error;
  }
  app.invalidate();
}

const showValue = (value) => (typeof value === "number" ? (value === 0 ? "no limit" : format.count(value)) : value === "0s" ? "no limit" : value || "none");

/** The limits that most nodes have, and the nodes that have others. */
function compare(answer) {
  const values = ({ limits }) => JSON.stringify(Object.entries(limits).map(([name, limit]) => [name, limit.value]).sort());
  const groups = Map.groupBy(answer.node_list.filter((each) => each.limits), values);
  const [most, ...others] = [...groups.values()].sort((a, b) => b.length - a.length);
  return { usual: most?.[0] ?? answer, others: others.flat() };
}

export function panel(app, topic) {
  const state = stateOf(app, topic);
  if (state.error) return emptyState(state.error.status === 404 ? "No node has this topic." : "The limits could not be read.", html`<p>${state.error.message}</p>`);
  const { answer } = state;
  if (!answer) return html`<p class="soft">Loading…</p>`;
  const lacks = app.source.lacks("limits");
  if (!answer.limits) return emptyState("No node of this topic has limits.", html`<p>${lacks ?? "Go's nsqd has none."}</p>`);
  const { usual, others } = compare(answer);
  const without = answer.node_list.filter((each) => each.error);
  return html`<dl class="options">${Object.entries(usual.limits).map(([name, { value, source }]) => html`<dt>${WORDS[name]?.[0] ?? name}</dt><dd>${showValue(value)} ${badge(source === "topic" ? "of this topic" : "from the flag")}</dd>`)}
      <dt>Dead letters go to</dt><dd>${usual.dead_letter_topic ? html`<a href=${app.href("topic", { topic: usual.dead_letter_topic })}>${usual.dead_letter_topic}</a>` : "nowhere: such messages are dropped and counted"}</dd></dl>
    ${others.map((each) => html`<p class="warning">${each.node} differs: ${Object.entries(each.limits).filter(([name, limit]) => limit.value !== usual.limits[name]?.value).map(([name, limit]) => `${WORDS[name]?.[0] ?? name} ${showValue(limit.value)}`).join(", ")}</p>`)}
    ${without.map((each) => html`<p class="warning">${each.node}: ${each.error === "NOT_SUPPORTED" ? "it has no limits" : each.error}</p>`)}
    ${app.can("admin")
      ? html`<div class="bar">${button("Edit…", () => edit(app, topic, state, usual), { reason: lacks })}${others.length ? button("Apply to all nodes", () => save(app, topic, state, ownValues(usual))) : nothing}</div>`
      : nothing}`;
}

/** The limits that the topic has of its own, by name. */
const ownValues = (answer) => Object.fromEntries(Object.entries(answer.limits).filter(([, limit]) => limit.source === "topic").map(([name, limit]) => [name, limit.value]));

async function save(app, topic, state, limits) {
  const result = await actions.run(app, "set_limits", [{ topic }], { params: { limits }, isQuiet: true });
  await read(app, topic, state);
  return result;
}

function edit(app, topic, state, { limits }) {
  return openDialog(app, `Limits of ${topic}`, (dialog) => {
    const form = dialog.state;
    const submit = async (event) => {
      event.preventDefault();
      if (form.isBusy) return;
      const data = new FormData(event.target);
      const values = {};
      form.errors = {};
      for (const name of Object.keys(limits)) {
        const text = String(data.get(name) ?? "").trim();
        if (!data.has(`own ${name}`)) continue;
        const isNumber = typeof limits[name].value === "number";
        if (isNumber && !/^\d{1,15}$/.test(text)) form.errors[name] = "A whole number is needed, 0 or more.";
        else values[name] = isNumber ? Number(text) : text;
      }
      if (!Object.keys(form.errors).length) {
        form.isBusy = true;
        dialog.update();
        try {
          const result = await app.source.act("set_limits", [{ topic }], { params: { limits: values } });
          const failed = result.outcomes.filter((outcome) => outcome.state === "failed");
          for (const outcome of failed) {
            const name = /INVALID_([A-Z_]+)/.exec(outcome.text)?.[1].toLowerCase();
            form.errors[name in limits ? name : "all"] = name in limits ? `Not valid: ${WORDS[name]?.[1] ?? ""}` : `${outcome.node}: ${outcome.text}`;
          }
          if (!failed.length) {
            dialog.done(true);
            app.notify(`Limits of ${topic} set.`);
          }
        } catch (error) {
          if (error.status === 401) {
            dialog.done(null);
            if (await actions.signIn(app)) edit(app, topic, state, { limits });
            return;
          }
          form.errors.all = error.message;
        }
        form.isBusy = false;
        read(app, topic, state);
        app.refresh();
      }
      if (dialog.element.isConnected) dialog.fail();
    };
    const errors = form.errors ?? {};
    return html`<form method="dialog" @submit=${submit}>
      <p class="soft">What is not ticked has the value of the node's flag.</p>
      ${Object.entries(limits).map(([name, { value, source }], at) => {
        const isOwn = form[name] ?? source === "topic";
        return html`<div><label class="check"><input type="checkbox" name="own ${name}" ?autofocus=${!at} .checked=${isOwn} @change=${(event) => {
            form[name] = event.target.checked;
            dialog.update();
          }} /> ${WORDS[name]?.[0] ?? name} <small class="soft">${WORDS[name]?.[1] ?? ""}</small></label>
          ${name === "max_depth_policy"
            ? html`<select name=${name} ?disabled=${!isOwn} aria-label=${WORDS[name][0]}>${["reject", "drop-oldest"].map((each) => html`<option ?selected=${each === value}>${each}</option>`)}</select>`
            : html`<input name=${name} .defaultValue=${String(value)} ?disabled=${!isOwn} autocomplete="off" spellcheck="false" aria-label=${WORDS[name]?.[0] ?? name} aria-invalid=${invalid(errors[name])} aria-describedby="error-${name}" />`}
          <span class="error" id="error-${name}" role="alert">${errors[name] ?? ""}</span></div>`;
      })}
      <p class="error" role="alert">${errors.all ?? nothing}</p>
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="primary" ?disabled=${Boolean(form.isBusy)}>Save on all nodes</button></footer>
    </form>`;
  });
}

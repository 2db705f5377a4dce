// The dialog that publishes by hand.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { signIn } from "./actions.js";
import { decodeUtf8, encodeUtf8, fromBase64, toBase64 } from "./bodies.js";
import * as format from "./format.js";
import { invalidName } from "./model.js";
import { invalid, openDialog } from "./widgets.js";

/** Publish by hand. */
export async function publish(app, { topic = "", body = "", isBase64 = false, node = null } = {}) {
  await app.source.nodes();
  const nodes = app.source.nodeNames ?? [];
  return openDialog(app, "Publish", (dialog) => {
    const { state } = dialog;
    const submit = async (event) => {
      event.preventDefault();
      if (state.isBusy) return;
      const form = new FormData(event.target);
      const value = (name) => String(form.get(name) ?? "");
      const encoded = value("encoding") === "base64" ? fromBase64(value("body")) : encodeUtf8(value("body"));
      state.errors = {
        topic: invalidName(value("topic")),
        body: encoded === null ? "This is no base64." : encoded.length === 0 ? "An empty message is refused by nsqd." : null,
      };
      if (!Object.values(state.errors).some(Boolean)) {
        state.isBusy = true;
        dialog.update();
        try {
          const count = Number(value("count")) || 1;
          const sent = await app.source.publish({ topic: value("topic"), node: value("node") || null, body: encoded, defer_ms: Math.round(Number(value("defer")) * 1000), count });
          dialog.done(true);
          app.notify(`${format.plural(sent.published, "message")} published to ${value("topic")}.`);
          app.refresh();
        } catch (error) {
          if (error.status === 401) {
            dialog.done(null);
            const draft = { topic: value("topic"), body: value("body"), isBase64: value("encoding") === "base64", node: value("node") };
            if (await signIn(app)) publish(app, draft);
            return;
          }
          state.errors.all = error.message;
        }
        state.isBusy = false;
      }
      if (dialog.element.isConnected) dialog.fail();
    };
    const errors = state.errors ?? {};
    const problem = (name) => html`<span class="error" id="error-${name}" role="alert">${errors[name] ?? ""}</span>`;
    return html`<form method="dialog" class="wide" @submit=${submit}>
      <label>Topic <input name="topic" .defaultValue=${topic} list="names-all" autocomplete="off" spellcheck="false" ?autofocus=${!topic} aria-invalid=${invalid(errors.topic)} aria-describedby="error-topic" />${problem("topic")}</label>
      <datalist id="names-all">${[...app.model.topics.keys()].slice(0, 500).map((name) => html`<option value=${name}></option>`)}</datalist>
      <label>Body <textarea name="body" rows="7" spellcheck="false" .defaultValue=${body} ?autofocus=${Boolean(topic)} aria-invalid=${invalid(errors.body)} aria-describedby="error-body"></textarea>${problem("body")}</label>
      <div class="row">
        <label>As <select name="encoding"><option value="text">text</option><option value="base64" ?selected=${isBase64}>base64</option></select></label>
        <label>Deferred by <span class="unit"><input name="defer" type="number" min="0" max="3600" step="any" value="0" /> s</span></label>
        <label>Times <input name="count" type="number" min="1" max="1000" value="1" /></label>
      </div>
      ${nodes.length ? html`<label>Node <select name="node"><option value="">any</option>${nodes.map((name) => html`<option ?selected=${name === node}>${name}</option>`)}</select></label>` : nothing}
      <p class="error" role="alert">${errors.all ?? ""}</p>
      <footer><button type="button" @click=${() => dialog.done(null)}>Cancel</button><button class="primary" ?disabled=${Boolean(state.isBusy)}>Publish</button></footer>
    </form>`;
  });
}

/** Body of a message as a draft for `publish`. */
export function draftOf(topic, bytes) {
  const text = decodeUtf8(bytes);
  return text === null ? { topic, body: toBase64(bytes), isBase64: true } : { topic, body: text };
}

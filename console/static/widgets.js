// The small parts that pages are made of: figures, charts, badges, notices, dialogs.

import { html, nothing, render, svg } from "./vendor/lit-html/lit-html.js";
import * as format from "./format.js";
import { rangeOf } from "./store.js";

const ROOT = document.querySelector('meta[name="nsq-root"]').content;

export const badge = (text, kind = "", tip) => html`<span class="badge ${kind}" title=${tip ?? nothing}>${text}</span>`;

/** A figure with its name; `tip` explains it. */
export const tile = (label, value, { tip, note, href, id, isDouble } = {}) => html`<div class="tile ${isDouble ? "double" : ""}" title=${tip ?? nothing} id=${id ?? nothing}>
  <dt>${href ? html`<a href=${href}>${label}</a>` : label}</dt><dd class=${typeof value === "string" && value.length > 9 ? "long" : ""}>${value}${note ? html` <small class="note">${note}</small>` : nothing}</dd></div>`;

export const tiles = (...list) => html`<dl class="tiles">${list}</dl>`;

export const paused = (row) => {
  if (!row.pausedNodes) return nothing;
  if (row.nodeCount > 1 && row.pausedNodes < row.nodeCount) return badge(`paused on ${row.pausedNodes} of ${row.nodeCount} nodes`, "warn");
  return badge("paused", "warn");
};

/** A button that is dead where something is missing, and says what. */
export function button(label, onClick, { reason, tip, kind = "", type = "button", id } = {}) {
  return html`<button type=${type} id=${id ?? nothing} class=${kind} aria-disabled=${reason ? "true" : nothing} title=${reason ?? tip ?? nothing} @click=${(event) => {
    if (reason) event.preventDefault();
    else onClick?.(event);
  }}>${label}</button>`;
}

/** How far something is. */
export const progress = (label, max, value) => html`<div><progress aria-label=${label} max=${max} .value=${value}></progress></div>`;

/** What a field says of its error. */
export const invalid = (error) => (error ? "true" : nothing);

/** Text with a button that copies it. */
export function copyLine(app, text) {
  return html`<div class="copy"><code>${text}</code><button type="button" @click=${() => copy(app, text)}>Copy</button></div>`;
}

export async function copy(app, text) {
  try {
    await navigator.clipboard.writeText(text);
    app.notify("Copied.");
  } catch {
    app.notify("The browser did not let the page copy: mark the text and press Ctrl+C.", { kind: "bad" });
  }
}

export function download(name, parts, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The last ten minutes as a line of 80 by 18. */
export function spark(points) {
  if (!points || points.length < 2) return html`<span class="spark" aria-hidden="true"></span>`;
  const top = Math.max(...points, 1);
  const step = 80 / (points.length - 1);
  const line = points.map((value, at) => `${(at * step).toFixed(1)},${(17 - (value / top) * 16).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 80 18" preserveAspectRatio="none" role="img" aria-label="waiting: ${format.count(points[0])}, now ${format.count(points.at(-1))}">${svg`<polyline points=${line} />`}</svg>`;
}

let plotLoading = null;
function loadPlot() {
  plotLoading ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = `${ROOT}/vendor/uplot/uPlot.min.css`;
    const script = document.createElement("script");
    script.src = `${ROOT}/vendor/uplot/uPlot.iife.min.js`;
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("the chart library did not load"));
    document.head.append(style, script);
  });
  return plotLoading;
}

// A chart that comes into view loads the library, which is a third of the page.
class Chart extends HTMLElement {
  #plot = null;
  #content = null;
  #shape = "";
  #width = 0;
  #isSeen = false;
  #view = new IntersectionObserver((entries) => {
    this.#isSeen = entries.some((entry) => entry.isIntersecting);
    if (this.#isSeen) this.draw();
  });
  #size = new ResizeObserver(() => this.fit());

  connectedCallback() {
    this.#view.observe(this);
    this.#size.observe(this);
    addEventListener("nsq-theme", this.redraw);
  }

  disconnectedCallback() {
    this.#view.disconnect();
    this.#size.disconnect();
    removeEventListener("nsq-theme", this.redraw);
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** {t, lines: [{label, values, kind?}], unit, utc} */
  set content(content) {
    this.#content = content;
    if (this.#isSeen) this.draw();
  }

  redraw = () => {
    this.#plot?.destroy();
    this.#plot = null;
    if (this.#isSeen) this.draw();
  };

  fit() {
    const width = Math.floor(this.clientWidth);
    if (this.#plot && width > 0 && width !== this.#width) {
      this.#width = width;
      this.#plot.setSize({ width, height: this.clientHeight });
    }
  }

  async draw() {
    const uPlot = await loadPlot();
    const content = this.#content;
    if (!content || !this.isConnected) return;
    const shape = JSON.stringify([content.lines.map((line) => line.label), content.utc, content.unit]);
    const data = [content.t, ...content.lines.map((line) => line.values)];
    if (this.#plot && shape === this.#shape) {
      this.#plot.setData(data);
      return;
    }
    this.#plot?.destroy();
    this.#shape = shape;
    this.#width = Math.floor(this.clientWidth);
    const css = getComputedStyle(this);
    const colour = (name) => css.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const show = content.unit === "ns" ? format.latency : content.unit === "/s" ? (value) => `${format.rate(value)}/s` : format.count;
    const short = (value) => {
      if (content.unit === "ns") return format.latency(value);
      return Math.abs(value) >= 1e6 ? `${+(value / 1e6).toFixed(2)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(+value.toFixed(2));
    };
    this.#plot = new uPlot(
      {
        width: this.#width,
        height: this.clientHeight,
        tzDate: content.utc ? (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC") : undefined,
        // At least a minute, so that the first points have room.
        scales: { x: { range: (_plot, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
        axes: [{ ...axis, space: 70, size: 26, values: [[3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([step, text]) => [step, text, null, null, null, null, null, null, 1]) }, { ...axis, size: 48, space: 28, values: (_plot, ticks) => ticks.map(short) }],
        legend: { show: true, live: true },
        cursor: { y: false, points: { size: 6 } },
        series: [
          { value: (_plot, value) => (value === null ? "" : format.time(value * 1000, { utc: content.utc })) },
          ...content.lines.map((line, at) => ({
            label: line.label,
            stroke: colour(`--plot${(at % 6) + 1}`),
            width: 1.6,
            points: { show: (plot) => plot.data[0].length < 3 },
            spanGaps: false,
            // Without a cursor over the chart: the newest.
            value: (plot, value, number, index) => show(index === null ? plot.data[number].findLast((each) => each !== null) : value),
          })),
        ],
      },
      data,
      this,
    );
  }
}
customElements.define("nsq-chart", Chart);

/**
 * A chart with its title.
 * history: {t, series}; lines: [[label, member of series, scale?]], or [label, values].
 */
export function chart(app, title, history, lines, unit = "") {
  // One point alone would get an axis of a day.
  const lead = history?.t.length === 1;
  const times = history?.t ?? [];
  const pad = (values) => (lead ? [null, ...values] : values);
  const content = {
    t: lead ? [times[0] - 5, times[0]] : times,
    lines: lines.map(([label, values]) => ({ label, values: pad((typeof values === "string" ? history?.series?.[values] : values) ?? times.map(() => null)) })),
    unit,
    utc: app.prefs.get("utc"),
  };
  const show = unit === "ns" ? format.latency : unit === "/s" ? (value) => `${format.rate(value)} per second` : format.count;
  const last = content.lines.map((line) => `${line.label} ${show(line.values.findLast((each) => each !== null))}`).join(", ");
  return html`<figure class="chart"><figcaption>${title}</figcaption>
    <nsq-chart role="img" aria-label="${title}: now ${last}" .style=${`--rows2:${Math.ceil(lines.length / 2)};--rows3:${Math.ceil(lines.length / 3)}`} .content=${content}></nsq-chart></figure>`;
}

export const rangePicker = (app) => html`<div class="range" role="group" aria-label="range of the charts">
  ${["10m", "1h"].map((range) => html`<button type="button" aria-pressed=${rangeOf(app.route) === range ? "true" : "false"} @click=${() => app.setQuery({ range: range === "10m" ? null : range })}>${range === "10m" ? "10 min" : "1 h"}</button>`)}
</div>`;

export const tabs = (app, names, now) => html`<nav class="tabs" aria-label="parts of this page">
  ${names.map(([id, label]) => html`<a href=${app.href(app.route.name, { ...app.route, query: { tab: id === names[0][0] ? null : id } })} aria-current=${id === now ? "page" : nothing}>${label}</a>`)}
</nav>`;

export const emptyState = (title, ...content) => html`<div class="empty"><p class="lead">${title}</p>${content}</div>`;

/**
 * A dialog over the page; resolves with what its form returns, or null when it is left.
 * body(dialog): the template; dialog.update() renders again, dialog.fail() goes to a wrong field, dialog.done(value) ends it.
 */
export function openDialog(app, title, body) {
  return new Promise((resolve) => {
    const element = document.createElement("dialog");
    element.setAttribute("aria-labelledby", "dialog-title");
    let focused = null;
    let wasDead = false;
    element.addEventListener("focusin", (event) => (focused = event.target));
    // What had the focus may have gone, or been dead for a while: the keyboard needs a place to go on from.
    const keepFocus = () => {
      if (focused && !element.contains(document.activeElement)) {
        if (!focused.isConnected) [...element.querySelectorAll("footer button:not([disabled])")].at(-1)?.focus();
        else if (wasDead && !focused.disabled) focused.focus();
      }
      wasDead = Boolean(focused?.disabled);
    };
    const dialog = {
      element,
      state: {},
      done: (value) => {
        dialog.value = value;
        element.close();
      },
      update: () => {
        render(
          html`<header><h2 id="dialog-title">${title}</h2><button type="button" class="close" aria-label="close" @click=${() => element.close()}>×</button></header>${body(dialog)}`,
          element,
        );
        keepFocus();
      },
      /** Show what is wrong with the fields, and go to the first of them. */
      fail: () => {
        dialog.update();
        element.querySelector("[aria-invalid]")?.focus();
      },
    };
    element.addEventListener("close", () => {
      element.remove();
      if (app.dialog === dialog) app.dialog = null;
      resolve(dialog.value ?? null);
    });
    document.body.append(element);
    app.dialog = dialog;
    dialog.update();
    element.showModal();
    element.querySelector("[autofocus]")?.focus();
  });
}

// Cluster mode: nsqadmin's API v2 (docs/contract/console_api.md), in the shapes that it has.

import { ask, toObjects, withQuery } from "./api.js";
import { Model } from "./model.js";

const SPARK_EVERY_MS = 10_000;
const MAX_SPARKS = 100; // in one answer
const SPARK_PAUSE_MS = 1000; // between two questions while the table is scrolled
const ACTION_EVERY_MS = 300;

/** Points up to the last that is known: the newest of a round may be missing yet. */
const untilLast = (points) => points.slice(0, points.findLastIndex((point) => point !== null) + 1);

export class ClusterSource {
  mode = "cluster";
  model = new Model();
  overview = null;

  constructor(base) {
    this.base = `${base}/api/v2/`;
    this.seq = null;
    this.sparks = new Map();
    this.sparkNames = "";
    this.sparkedAt = -Infinity;
    this.nodeList = [];
    this.nodesAsked = null;
    this.nodeSeq = null; // the round that the list of nodes is of
  }

  request(method, path, query = {}, body = undefined) {
    return ask(method, withQuery(this.base + path, query), { body });
  }

  get nodeNames() {
    return this.nodeList.filter((node) => node.state === "up").map((node) => node.node);
  }

  async start() {
    this.me = await this.request("GET", "me");
    return this.me;
  }

  async signIn(token) {
    this.me = await this.request("POST", "session", {}, { token });
  }

  async signOut() {
    await this.request("DELETE", "session");
    location.reload();
  }

  /** Why a node can't do something; null if it can, or if any node can when none is named. */
  lacks(extension, node) {
    const concerned = node === undefined ? this.nodeList : this.nodeList.filter((each) => each.node === node);
    const known = concerned.filter((each) => each.extensions !== null);
    if (!known.length || known.some((each) => each.extensions.includes(extension))) return null;
    return `${node ?? "No node"} has ${node ? "no" : "the extension"} "${extension}": Go's nsqd does not, and older ones of ours do not either`;
  }

  async poll() {
    const [overview, queues] = await Promise.all([
      this.request("GET", "overview", { since: this.seq }),
      this.request("GET", "queues", { since: this.seq }),
    ]);
    if (overview) {
      this.overview = overview;
      this.updatedAt = performance.now();
    }
    if (queues) {
      this.model.apply(toObjects(queues), { removed: queues.removed, full: queues.full });
      this.seq = queues.seq;
    }
    // Dead letters wait in a topic without a channel: that is no fault.
    const isFault = ({ kind, topic }) => kind !== "no_channel" || !this.model.topics.get(topic)?.dead_letters_of;
    if (overview) this.overview.findings = overview.findings.filter(isFault);
  }

  history(query) {
    return this.request("GET", "history", query);
  }

  sparkline(topic) {
    return this.sparks.get(topic);
  }

  /** Ask for the lines of the topics in view, now and then. */
  async sparklines(names) {
    const asked = names.filter((name) => !name.includes(","));
    const text = asked.join(",");
    const pause = text === this.sparkNames ? SPARK_EVERY_MS : SPARK_PAUSE_MS;
    if (!text || performance.now() - this.sparkedAt < pause) return;
    this.sparkNames = text;
    this.sparkedAt = performance.now();
    try {
      for (let at = 0; at < asked.length; at += MAX_SPARKS) {
        const { series } = await this.request("GET", "sparklines", { topics: asked.slice(at, at + MAX_SPARKS).join(",") });
        for (const [name, points] of Object.entries(series)) this.sparks.set(name, untilLast(points).map((point) => point ?? 0));
      }
    } catch {
      // The next round asks again; the table is complete without them.
    }
  }

  topic(topic, { fresh } = {}) {
    return this.request("GET", "topics", { topic, fresh: fresh ? 1 : null });
  }

  channel(topic, channel, { fresh } = {}) {
    return this.request("GET", "topics", { topic, channel, fresh: fresh ? 1 : null });
  }

  /** The nodes as of the last round; lists of queues do without, and five hundred are 20 KB. */
  async nodes() {
    if (this.nodeSeq !== this.seq) this.nodesAsked ??= this.askNodes().finally(() => (this.nodesAsked = null));
    await this.nodesAsked;
    return { lookupd_count: this.lookupdCount, nodes: this.nodeList };
  }

  async askNodes() {
    const { seq } = this;
    const answer = await this.request("GET", "nodes", { since: this.nodeSeq });
    if (answer) {
      this.nodeList = answer.nodes;
      this.lookupdCount = answer.lookupd_count;
    }
    this.nodeSeq = seq;
  }

  nodeDetail(node) {
    return this.request("GET", "nodes", { node });
  }

  async clients(query = {}) {
    const answer = await this.request("GET", "clients", query);
    return { ...answer, rows: toObjects(answer) };
  }

  limits(topic) {
    return this.request("GET", "limits", { topic });
  }

  deadLetters() {
    return this.request("GET", "dead-letters");
  }

  audit(before) {
    return this.request("GET", "audit", { before, count: 100 });
  }

  async inactive() {
    return (await ask("GET", withQuery(this.base.replace(/v2\/$/, "topics"), { inactive: "true" }))).topics;
  }

  async counter() {
    const { stats } = await ask("GET", this.base.replace(/v2\/$/, "counter"));
    return Object.values(stats).reduce((sum, each) => sum + each.message_count, 0);
  }

  messages(query) {
    return this.request("GET", "messages", query);
  }

  message({ node, id, topic, channel, order }) {
    return this.request("GET", `messages/${encodeURIComponent(node)}/${encodeURIComponent(id)}`, { topic, channel, order });
  }

  async publish({ topic, node, body, defer_ms, count }) {
    const { toBase64 } = await import("./bodies.js");
    return this.request("POST", "messages", {}, { topic, node, body_base64: toBase64(body), defer_ms, count });
  }

  /** Do something to targets; `onProgress` hears the outcomes so far, `signal` stops what has not begun. */
  async act(action, targets, { confirm, params, onProgress, signal } = {}) {
    const { id } = await this.request("POST", "actions", {}, { action, targets, confirm, params });
    const path = `actions/${encodeURIComponent(id)}`;
    let isStopping = false;
    for (;;) {
      const state = await this.request("GET", path);
      onProgress?.(state.outcomes);
      if (state.state === "done") return state;
      if (signal?.aborted && !isStopping) {
        isStopping = true;
        await this.request("DELETE", path);
      }
      await new Promise((resolve) => setTimeout(resolve, ACTION_EVERY_MS));
    }
  }
}

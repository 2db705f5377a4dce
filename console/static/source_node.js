// Node mode: the page's figures out of the calls that this nsqd offers anyway.
//
// It answers as `source_cluster.js` does, in the shapes of docs/contract/console_api.md, so that
// the pages do not care which of the two they talk to. Counts become rates here, and the history
// is what the page has seen since it was opened.

import { ApiError, ask, serverTime, toObjects, withQuery } from "./api.js";
import { History, addRates } from "./history.js";
import { Model, keyOf } from "./model.js";
import { storageOf } from "./store.js";

const TOKEN_KEY = "nsq-console-token";
const session = storageOf("sessionStorage");
// An nsqd that does not say what it can do has these.
const FIRST_EXTENSIONS = ["peek", "limits", "drain", "archive"];
const OPTIONS = ["log_level", "mem_queue_size", "msg_timeout", "max_msg_timeout", "max_msg_size", "max_body_size", "max_rdy_count", "sync_every", "sync_timeout", "data_path", "max_attempts", "msg_ttl", "max_depth", "dead_letter_topic_suffix", "nsqlookupd_tcp_addresses"];
const GREW_WITHIN_S = 60;
const STILL_FOR_S = 15;
const DISK_LOW = 0.05;
const MAX_ASKED_TOPICS = 50;
const SLICE_TOPICS = 200;
const MAX_CALL_COUNT = 10_000; // that one call moves

const LOSSES = ["rejected_count", "dropped_depth_count", "dropped_ttl_count", "dropped_attempts_count", "dead_lettered_count"];

function lossesOf(part) {
  return Object.fromEntries(Object.entries(part).filter(([name]) => LOSSES.includes(name) || /^(dropped|dead_letter|expired|rejected).*_count$/.test(name)));
}

function worstLatency(latency) {
  const values = (latency?.percentiles ?? []).map((each) => each.value ?? each.max ?? 0);
  return values.length && latency.count ? Math.max(...values) : null;
}

function spreadLatency(latency) {
  return {
    count: latency?.count ?? 0,
    percentiles: (latency?.percentiles ?? []).map(({ quantile, value }) => ({ quantile, average: value, min: value, max: value, count: latency.count })),
  };
}

export class NodeSource {
  mode = "node";
  model = new Model();
  overview = null;
  time = null;

  constructor() {
    this.log = new History();
    this.stats = null;
    this.info = null;
    this.growth = new Map(); // key -> when a queue without consumers was last seen to grow
    this.still = new Map(); // key -> since when ready consumers have taken nothing
    this.deadLetterTopics = new Map(); // topic -> where its dead letters go, if asked topic by topic
    this.found = new Map(); // finding -> when it was first seen
    this.raw = new Map(); // topic -> its figures as /stats has them, kept up to date by deltas
    this.seq = null; // of the last delta
    this.mustBeFresh = false; // something was changed: figures that others were told are too old
  }

  get token() {
    return session.getItem(TOKEN_KEY);
  }

  request(method, path, query = {}, options = {}) {
    return ask(method, withQuery(path, query), { token: this.token, ...options });
  }

  async start() {
    this.info = await this.request("GET", "/info");
    this.node = `${this.info.broadcast_address.includes(":") ? `[${this.info.broadcast_address}]` : this.info.broadcast_address}:${this.info.http_port}`;
    this.extensions = this.info.extensions ?? FIRST_EXTENSIONS;
    this.me = {
      mode: "node", user: "", role: "admin", rights: ["view", "peek", "operate", "admin"], auth: this.token ? "token" : "none",
      version: this.info.version, build: this.info.build ?? "", poll_ms: 5000, features: { history: true, audit: false, actions: true },
      notes: location.protocol === "http:" && !["localhost", "127.0.0.1", "[::1]"].includes(location.hostname) ? ["The connection is plain HTTP: others on the network can read along."] : [],
    };
    return this.me;
  }

  /** Why a node can't do something; null if it can. */
  lacks(extension) {
    return this.extensions.includes(extension) ? null : `This nsqd has no "${extension}": it is older than the page expects`;
  }

  async signIn(token) {
    // A call that needs the token and changes nothing: peeking into a topic without a name.
    await ask("GET", "/topic/peek", { token }).catch((error) => {
      if (error.status === 401 || !error.isAnswer) throw error;
    });
    session.setItem(TOKEN_KEY, token);
    this.me.auth = "token";
  }

  async signOut() {
    session.removeItem(TOKEN_KEY);
    this.me.auth = "none";
  }

  /** The figures as /stats?format=json has them; of an nsqd that tells them, only the changes are sent. */
  async readStats() {
    if (this.lacks("stats_delta")) return this.request("GET", "/stats", { format: "json", include_clients: "false", include_mem: "false" });
    const fresh = this.mustBeFresh ? "true" : null;
    this.mustBeFresh = false;
    const answer = await this.request("GET", "/stats", { format: "delta", since: this.seq, fresh });
    // A node that was started anew counts from the beginning.
    if (!answer.full && this.stats?.start_time !== answer.start_time) {
      this.seq = null;
      return this.readStats();
    }
    this.seq = answer.seq;
    if (answer.full) this.raw.clear();
    for (const [topic, channel] of answer.removed) {
      if (channel === null) this.raw.delete(topic);
      else this.raw.get(topic)?.parts.delete(channel);
    }
    for (const { more, topic, channel, ...figures } of toObjects(answer)) {
      const row = { ...figures, ...more };
      if (channel !== null) this.raw.get(topic)?.parts.set(channel, { ...row, channel_name: channel });
      else this.raw.set(topic, { ...row, topic_name: topic, parts: this.raw.get(topic)?.parts ?? new Map() });
    }
    return { ...answer, topics: [...this.raw.values()].map((topic) => ({ ...topic, channels: [...topic.parts.values()] })) };
  }

  async poll() {
    const started = performance.now();
    const stats = await this.readStats();
    const time = serverTime();
    const isRestarted = this.stats && this.stats.start_time !== stats.start_time;
    const seconds = this.time === null ? null : time - this.time;
    const rows = [];
    let count = 0;
    for (const topic of stats.topics ?? []) {
      rows.push(...this.rowsOf(topic, seconds, isRestarted));
      // Thousands of queues are taken over in slices: the page stays quick meanwhile.
      count += 1;
      if (count % SLICE_TOPICS === 0) await new Promise((resolve) => setTimeout(resolve));
    }
    const keys = new Set(rows.map((row) => keyOf(row.topic, row.channel)));
    for (const key of this.model.rows.keys()) if (!keys.has(key)) this.log.forget(key);
    this.model.apply(rows, { full: true });
    this.stats = stats;
    this.time = time;
    this.updatedAt = performance.now();
    this.makeOverview(time, performance.now() - started);
    this.log.record(time, { ...this.overview.totals, depth: this.overview.totals.waiting }, this.model.topics);
  }

  /** Poll for the figures of this moment. */
  pollNow() {
    this.mustBeFresh = true;
    return this.poll();
  }

  /** The row of a topic and those of its channels. */
  rowsOf(topic, seconds, isRestarted) {
    const name = topic.topic_name;
    const rated = (row) => {
      addRates(row, isRestarted ? undefined : this.model.rows.get(keyOf(row.topic, row.channel)), seconds);
      return row;
    };
    const channels = (topic.channels ?? []).map((channel) =>
      rated({
        topic: name, channel: channel.channel_name, depth: channel.depth, backend_depth: channel.backend_depth, waiting: channel.depth,
        in_flight: channel.in_flight_count, deferred: channel.deferred_count, message_count: channel.message_count, finish_count: channel.finish_count,
        requeue_count: channel.requeue_count, timeout_count: channel.timeout_count, clients: channel.client_count, channels: 0, nodes: 1, paused: channel.paused ? 1 : 0,
        disk_bytes: channel.disk_bytes ?? null, latency_ns: worstLatency(channel.e2e_processing_latency), dead_letter_topic: null, stale: 0, raw: channel,
      }),
    );
    const sum = (member) => channels.reduce((total, channel) => total + (channel[member] ?? 0), 0);
    const rates = (member) => (channels.length && channels.every((channel) => channel[member] !== null) ? sum(member) : null);
    const row = rated({
      topic: name, channel: null, depth: topic.depth, backend_depth: topic.backend_depth, waiting: topic.depth + sum("depth"),
      in_flight: sum("in_flight"), deferred: sum("deferred"), message_count: topic.message_count, message_bytes: topic.message_bytes,
      clients: sum("clients"), channels: channels.length, nodes: 1, paused: topic.paused ? 1 : 0,
      disk_bytes: topic.disk_bytes === undefined ? null : topic.disk_bytes + sum("disk_bytes"), latency_ns: worstLatency(topic.e2e_processing_latency),
      dead_letter_topic: topic.dead_letter_topic || null, stale: 0, raw: topic,
    });
    row.out_rate = rates("out_rate");
    row.requeue_rate = rates("requeue_rate");
    row.timeout_rate = rates("timeout_rate");
    row.out_estimated = channels.some((channel) => channel.out_estimated);
    return [row, ...channels];
  }

  makeOverview(time, tookMs) {
    const totals = { topics: this.model.topics.size, channels: 0, clients: 0, waiting: 0, in_flight: 0, deferred: 0, in_rate: null, out_rate: null, out_estimated: false, disk_bytes: null };
    for (const topic of this.model.topics.values()) {
      for (const name of ["channels", "clients", "waiting", "in_flight", "deferred"]) totals[name] += topic[name];
      for (const name of ["in_rate", "out_rate", "disk_bytes"]) if (topic[name] !== null) totals[name] = (totals[name] ?? 0) + topic[name];
      totals.out_estimated ||= topic.out_estimated;
    }
    if (this.log.round && !this.model.topics.size) totals.in_rate = totals.out_rate = 0;
    if (!this.model.topics.size && !this.lacks("disk_bytes")) totals.disk_bytes = 0;
    this.overview = {
      time_ms: time * 1000, round: { age_ms: 0, took_ms: tookMs }, totals, nodes: { up: 1, stale: 0, gone: 0, counted: 1 }, lookupds: [], findings: this.findings(time),
    };
  }

  findings(time) {
    const found = [];
    const add = (finding) => {
      const key = [finding.kind, finding.topic, finding.channel].join("/");
      if (!this.found.has(key)) this.found.set(key, time);
      found.push({ ...finding, key, since_ms: this.found.get(key) * 1000 });
    };
    const { health, disk_free_bytes: free, disk_total_bytes: total, draining } = this.stats;
    if (health !== "OK") add({ severity: "error", kind: "node_unhealthy", node: this.node, text: `${this.node} is unhealthy: ${health}`, hint: "Publishes are refused until what failed succeeds. Look at the disk and at the log." });
    if (draining) add({ severity: "warning", kind: "node_draining", node: this.node, text: `${this.node} is draining`, hint: "It refuses publishes and stops when its channels are empty." });
    if (free !== undefined && total && free / total < DISK_LOW) add({ severity: "warning", kind: "disk_low", node: this.node, text: `${this.node}: the disk is nearly full`, hint: "Consume or empty what waits, or add disk." });
    for (const topic of this.model.topics.values()) {
      if (!topic.list.length && topic.depth > 0 && !topic.dead_letters_of) {
        add({ severity: "warning", kind: "no_channel", topic: topic.topic, count: topic.depth, text: `${topic.topic} has no channel`, hint: "Messages wait in the topic until a channel exists; consumers create one when they subscribe." });
      }
      for (const channel of topic.list) this.findInChannel(channel, time, add);
    }
    const keys = new Set(found.map((finding) => finding.key));
    for (const key of this.found.keys()) if (!keys.has(key)) this.found.delete(key);
    const rank = { error: 0, warning: 1, info: 2 };
    return found.sort((a, b) => rank[a.severity] - rank[b.severity] || (b.count ?? 0) - (a.count ?? 0)).slice(0, 200);
  }

  findInChannel(row, time, add) {
    const key = keyOf(row.topic, row.channel);
    const { topic, channel } = row;
    if (row.depth > 0 && !row.clients && !row.paused) {
      if (row.in_rate > 0 || !this.growth.has(key)) this.growth.set(key, row.in_rate > 0 ? time : -Infinity);
      if (time - this.growth.get(key) <= GREW_WITHIN_S) add({ severity: "error", kind: "no_consumer", topic, channel, count: row.depth, text: `${key} grows and has no consumer`, hint: "Start its consumers, or delete the channel if nobody needs it." });
    } else {
      this.growth.delete(key);
    }
    if (row.depth > 0 && row.clients && !row.in_flight && !row.paused && row.out_rate === 0) {
      if (!this.still.has(key)) this.still.set(key, time);
      if (time - this.still.get(key) >= STILL_FOR_S) add({ severity: "warning", kind: "consumers_not_ready", topic, channel, count: row.depth, text: `${key}: its consumers take nothing`, hint: "They have RDY 0: they back off, or are stuck." });
    } else {
      this.still.delete(key);
    }
  }

  history(query) {
    return this.log.read(query);
  }

  sparkline(topic) {
    return this.log.sparks.get(topic);
  }

  async sparklines() {}

  async statsOf(query) {
    return this.request("GET", "/stats", { format: "json", include_mem: "false", ...query });
  }

  async topic(name, { fresh } = {}) {
    if (fresh) await this.pollNow();
    const row = this.model.topics.get(name);
    if (!row) throw new ApiError(404, "TOPIC_NOT_FOUND");
    const raw = row.raw;
    const archive = raw.archive ? { ...raw.archive, oldest_ms: raw.archive.oldest_timestamp / 1e6 } : null;
    return {
      ...row, memory_depth: row.depth - row.backend_depth, latency: spreadLatency(raw.e2e_processing_latency), archive, losses: lossesOf(raw),
      channel_list: row.list.map((channel) => ({ ...channel, memory_depth: channel.depth - channel.backend_depth, latency: spreadLatency(channel.raw.e2e_processing_latency), losses: lossesOf(channel.raw) })),
      node_list: [{ node: this.node, state: "up", age_ms: 0, error: null, depth: row.depth, backend_depth: row.backend_depth, memory_depth: row.depth - row.backend_depth, message_count: row.message_count, in_rate: row.in_rate, paused: Boolean(row.paused), channels: row.list.length, tombstoned_s: null, extensions: this.extensions }],
      lookupds: [], warnings: [],
    };
  }

  async channel(topic, name, { fresh } = {}) {
    if (fresh) await this.pollNow();
    if (!this.model.topics.has(topic)) throw new ApiError(404, "TOPIC_NOT_FOUND");
    const row = this.model.rows.get(keyOf(topic, name));
    if (!row) throw new ApiError(404, "CHANNEL_NOT_FOUND");
    const raw = row.raw;
    const places = { zone_local_msg_count: raw.zone_local_msg_count ?? 0, region_local_msg_count: raw.region_local_msg_count ?? 0, global_msg_count: raw.global_msg_count ?? 0 };
    const shared = { ...row, ...places, memory_depth: row.depth - row.backend_depth, losses: lossesOf(raw) };
    return { ...shared, latency: spreadLatency(raw.e2e_processing_latency), node_list: [{ ...shared, node: this.node, state: "up", age_ms: 0, error: null, paused: Boolean(row.paused), extensions: this.extensions }] };
  }

  nodeRow() {
    const { info, stats, overview } = this;
    const { totals } = overview;
    return {
      node: this.node, state: "up", age_ms: 0, error: null, hostname: info.hostname, broadcast_address: info.broadcast_address, tcp_port: info.tcp_port, http_port: info.http_port,
      version: info.version, out_of_date: false, region: info.topology_region, zone: info.topology_zone, health: stats.health, start_ms: stats.start_time * 1000, uptime_s: this.time - stats.start_time,
      ...totals, disk_bytes: stats.disk_bytes ?? totals.disk_bytes, disk_free_bytes: stats.disk_free_bytes ?? null, draining: Boolean(stats.draining), lookupds: null, tombstones: [], extensions: this.extensions,
    };
  }

  async nodes() {
    return { lookupd_count: 0, nodes: [this.nodeRow()] };
  }

  async nodeDetail(node) {
    if (node !== this.node) throw new ApiError(404, "NODE_NOT_FOUND");
    // The memory alone: topics without that channel are left out, and no channel has this name.
    const memory = await this.request("GET", "/stats", { format: "json", channel: "*", include_clients: "false" });
    this.options ??= await this.#readOptions();
    const { options } = this;
    return { ...this.nodeRow(), memory_bytes: memory.memory?.heap_in_use_bytes ?? null, topic_list: [...this.model.topics.values()].map((topic) => ({ ...topic, channel_list: topic.list })), options, errors: [] };
  }

  async #readOptions() {
    const values = await Promise.all(OPTIONS.map((name) => this.request("GET", `/config/${name}`).catch(() => undefined)));
    return Object.fromEntries(OPTIONS.map((name, at) => [name, values[at]]).filter(([, value]) => value !== undefined));
  }

  async clients({ topic, channel, kind } = {}) {
    const stats = await this.statsOf({ topic, channel });
    const rows = [];
    const push = (client, more) => rows.push({ ...client, ...more, node: this.node, region: client.topology_region, zone: client.topology_zone });
    if (kind !== "producer") {
      for (const each of stats.topics ?? []) {
        for (const part of each.channels ?? []) for (const client of part.clients ?? []) push(client, { kind: "consumer", topic: each.topic_name, channel: part.channel_name });
      }
    }
    if (kind !== "consumer") for (const client of stats.producers ?? []) push(client, { kind: "producer", topic: null, channel: null, pub_counts: (client.pub_counts ?? []).map((pair) => [pair.topic, pair.count]) });
    return { asked: 1, answered: 1, errors: [], total: rows.length, truncated: rows.length > 5000, rows: rows.slice(0, 5000) };
  }

  async limits(topic) {
    const answer = await this.request("GET", "/topic/limits", { topic });
    return { ...answer, differs: false, node_list: [{ node: this.node, error: null, limits: answer.limits, dead_letter_topic: answer.dead_letter_topic }] };
  }

  async deadLetters() {
    const isTold = !this.lacks("stats_delta") || "dead_letter_topic" in (this.stats.topics?.[0] ?? { dead_letter_topic: "" });
    if (!isTold) await this.#readDeadLetterTopics();
    const rows = [];
    for (const topic of this.model.topics.values()) {
      const target = topic.dead_letter_topic ?? this.deadLetterTopics.get(topic.topic);
      if (!target) continue;
      const dead = this.model.topics.get(target);
      const channels = topic.list.map((channel) => ({ channel: channel.channel, dead_lettered_count: channel.raw.dead_lettered_count ?? 0 })).filter((channel) => channel.dead_lettered_count);
      rows.push({
        topic: topic.topic, dead_letter_topic: target, exists: Boolean(dead), waiting: dead?.waiting ?? 0, clients: dead?.clients ?? 0, nodes: 1,
        dead_lettered_count: (topic.raw.dead_lettered_count ?? 0) + channels.reduce((sum, channel) => sum + channel.dead_lettered_count, 0), channels, limits: null,
      });
    }
    if (!this.lacks("limits")) {
      await Promise.all(rows.slice(0, 50).map(async (row) => {
        row.limits = (await this.limits(row.topic).catch(() => null))?.limits ?? null;
      }));
    }
    return { rows, unsupported_nodes: isTold || this.model.topics.size <= MAX_ASKED_TOPICS ? 0 : 1 };
  }

  /** Ask topic by topic, some of them, where dead letters go: this nsqd does not tell with its figures. */
  async #readDeadLetterTopics() {
    const names = [...this.model.topics.keys()].slice(0, MAX_ASKED_TOPICS);
    const answers = await Promise.all(names.map((name) => this.limits(name).catch(() => null)));
    this.deadLetterTopics = new Map(names.map((name, at) => [name, answers[at]?.dead_letter_topic]).filter(([, target]) => target));
  }

  async messages({ topic, channel, where, count, order }) {
    const path = channel === undefined ? "/topic/peek" : "/channel/peek";
    const answer = await this.request("GET", path, { topic, channel, where, count, order, format: "json" });
    const messages = answer.messages.map((message) => ({ ...message, node: this.node, timestamp_ms: message.timestamp / 1e6, cut: false, ...(message.origin && { origin: { ...message.origin, timestamp_ms: message.origin.timestamp / 1e6 } }) }));
    return { messages, node_list: [{ node: this.node, count: messages.length, error: null }] };
  }

  async publish({ topic, body, defer_ms, count = 1 }) {
    if (count === 1) {
      await this.request("POST", "/pub", { topic, defer: defer_ms || null }, { body });
    } else {
      const part = new Uint8Array(4 + body.length);
      new DataView(part.buffer).setInt32(0, body.length);
      part.set(body, 4);
      const whole = new Uint8Array(4 + part.length * count);
      new DataView(whole.buffer).setInt32(0, count);
      for (let at = 0; at < count; at++) whole.set(part, 4 + at * part.length);
      await this.request("POST", "/mpub", { topic, binary: "true", defer: defer_ms || null }, { body: whole });
    }
    this.mustBeFresh = true;
    return { node: this.node, published: count };
  }

  /** Do something to targets one after the other; `onProgress` hears the outcomes so far. */
  async act(action, targets, { params = {}, onProgress, signal } = {}) {
    const outcomes = targets.map((target) => ({ ...target, node: this.node, state: "waiting", text: "" }));
    for (const outcome of outcomes) {
      if (signal?.aborted) {
        Object.assign(outcome, { state: "failed", text: "stopped" });
        continue;
      }
      try {
        await this.#do(action, outcome, params, () => onProgress?.(outcomes), signal);
        outcome.state = "done";
      } catch (error) {
        if (error.status === 401) throw error;
        Object.assign(outcome, { state: "failed", text: error.message });
      }
      onProgress?.(outcomes);
    }
    this.mustBeFresh = true;
    return { state: "done", outcomes, moved: outcomes.reduce((sum, outcome) => sum + (outcome.moved ?? 0), 0) };
  }

  async #do(action, outcome, params, progress, signal) {
    const { topic, channel } = outcome;
    const noun = channel === undefined ? "topic" : "channel";
    switch (action) {
      case "create":
        await this.request("POST", "/topic/create", { topic });
        if (channel !== undefined) await this.request("POST", "/channel/create", { topic, channel });
        return;
      case "pause": case "unpause": case "empty": case "delete":
        await this.request("POST", `/${noun}/${action}`, { topic, channel });
        return;
      case "set_limits":
        await this.request("POST", "/topic/limits", { topic }, { body: params.limits });
        return;
      case "drain":
        await this.request("POST", "/drain");
        return;
      case "close_client":
        await this.request("POST", "/client/close", { remote_address: params.remote_address });
        return;
      case "set_log_level":
        await this.request("PUT", "/config/log_level", {}, { body: params.level });
        this.options = null;
        return;
      case "drop":
        await this.request("POST", `/${noun}/drop`, { topic, channel }, { body: { ids: params.ids } });
        return;
      case "move": case "replay":
        await this.#move(`/${noun}/${action}`, outcome, params, progress, signal);
        return;
      default:
        throw new ApiError(400, "INVALID_ACTION");
    }
  }

  /**
   * Move or replay in chunks, so that it can be followed, slowed and stopped. Dead letters that
   * can't go back stay at the front of their queue: each call passes them by.
   */
  async #move(path, outcome, { to, to_channel, count, ids, rate }, progress, signal) {
    const { topic, channel } = outcome;
    let kept = 0;
    outcome.moved = 0;
    const call = async (query, options) => {
      const answer = await this.request("POST", path, { topic, channel, to, to_channel, ...query }, options);
      kept = Object.values(answer.kept ?? {}).reduce((sum, each) => sum + each, 0);
      Object.assign(outcome, { moved: outcome.moved + answer.moved, left: answer.left, kept: answer.kept });
      progress();
      // Some were moved before the topic refused the rest.
      if (answer.message) throw new ApiError(503, answer.message);
      return answer.moved;
    };
    if (ids) {
      await call({}, { body: { ids } });
      return;
    }
    while (outcome.moved + kept < count && !signal?.aborted) {
      const chunk = Math.min(count - outcome.moved - kept, rate ? Math.max(1, Math.ceil(rate / 2)) : 1000);
      const keptBefore = kept;
      const moved = await call({ count: Math.min(chunk + kept, MAX_CALL_COUNT) });
      if ((!moved && kept <= keptBefore) || outcome.left <= kept) return;
      if (rate && outcome.moved + kept < count) await new Promise((resolve) => setTimeout(resolve, (moved / rate) * 1000));
    }
  }
}

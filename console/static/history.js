// Node mode: rates from counters, and the history since the page was opened. No DOM.

import { keyOf } from "./model.js";

export const POINTS = 120; // of each range
const STEPS_S = { "10m": 5, "1h": 30 };
const SLACK = 0.9; // a round may come a little early
const SPARK_POINTS = 60;
const SPARK_STEP_S = 10;
export const SERIES = ["waiting", "depth", "in_flight", "deferred", "in", "out", "requeue", "timeout"];
// Queues with a history of their own, about 8 KB each; beyond, new ones replace idle ones.
export const MAX_TRACKS = 600;
const IDLE_ROUNDS = 3;

/** Difference of two readings of a counter per second; null if it fell, which is a restart. */
export function perSecond(before, now, seconds) {
  if (before === undefined || before === null || now === undefined || now === null || !(seconds > 0)) return null;
  return now < before ? null : (now - before) / seconds;
}

/** Add the rates to the rows of a round, given those of the round before, `seconds` earlier. */
export function addRates(row, before, seconds) {
  row.in_rate = perSecond(before?.message_count, row.message_count, seconds);
  row.requeue_rate = perSecond(before?.requeue_count, row.requeue_count, seconds);
  row.timeout_rate = perSecond(before?.timeout_count, row.timeout_count, seconds);
  row.bytes_rate = perSecond(before?.message_bytes, row.message_bytes, seconds);
  if (row.channel === null) return;
  row.out_estimated = row.finish_count === undefined;
  // Not told by the node: what came in and is not there any more. Emptying looks the same.
  row.gone_count = row.finish_count ?? row.message_count - row.depth - row.in_flight - row.deferred;
  row.out_rate = perSecond(before?.gone_count, row.gone_count, seconds);
}

/** The times of the points of a range: a ring that all tracks share. */
class Clock {
  constructor(stepS) {
    this.stepS = stepS;
    this.times = new Float64Array(POINTS);
    this.slot = -1;
    this.count = 0;
  }

  /** Begin a new point if it is time; returns whether it did. */
  advance(time) {
    if (this.count && time - this.times[this.slot] < this.stepS * SLACK) return false;
    this.slot = (this.slot + 1) % POINTS;
    this.times[this.slot] = time;
    this.count = Math.min(this.count + 1, POINTS);
    return true;
  }

  /** The slots from the oldest to the newest. */
  order() {
    return Array.from({ length: this.count }, (_, at) => (this.slot - this.count + 1 + at + POINTS) % POINTS);
  }
}

export class History {
  constructor() {
    this.clocks = Object.fromEntries(Object.entries(STEPS_S).map(([range, step]) => [range, new Clock(step)]));
    this.tracks = new Map(); // key -> {columns by range, activeAt}
    this.sparks = new Map();
    this.sparkTimes = [];
    this.round = 0;
    this.fullRound = -1; // in which all tracks were found to be in use
  }

  /** Note a round: the totals, the topics with their channels. */
  record(time, totals, topics) {
    this.round += 1;
    const ranges = Object.keys(this.clocks).filter((range) => this.clocks[range].advance(time));
    if (!ranges.length) return;
    this.write(ranges, "", true, totals);
    const isSpark = !this.sparkTimes.length || time - this.sparkTimes.at(-1) >= SPARK_STEP_S * SLACK;
    if (isSpark) this.sparkTimes = [...this.sparkTimes, time].slice(-SPARK_POINTS);
    for (const topic of topics.values()) {
      if (isSpark) this.addSpark(topic);
      this.write(ranges, topic.topic, topic.waiting > 0 || topic.in_rate > 0, topic);
      for (const channel of topic.list) {
        const isActive = channel.depth > 0 || channel.in_flight > 0 || channel.in_rate > 0;
        this.write(ranges, keyOf(channel.topic, channel.channel), isActive, channel);
      }
    }
  }

  addSpark(topic) {
    const points = this.sparks.get(topic.topic);
    if (!points && !topic.waiting) return;
    const known = points ?? new Array(this.sparkTimes.length - 1).fill(0);
    this.sparks.set(topic.topic, [...known, topic.waiting].slice(-SPARK_POINTS));
  }

  write(ranges, key, isActive, row) {
    let track = this.tracks.get(key);
    if (!track) {
      // A queue that has been still since the page was opened has no history.
      if (!isActive) return;
      if (this.tracks.size >= MAX_TRACKS && !this.dropIdlest()) return;
      track = { columns: {}, activeAt: 0 };
      for (const range of Object.keys(this.clocks)) track.columns[range] = new Float32Array(SERIES.length * POINTS).fill(NaN);
      this.tracks.set(key, track);
    }
    if (isActive) track.activeAt = this.round;
    const values = [row.waiting, row.depth, row.in_flight, row.deferred, row.in_rate, row.out_rate, row.requeue_rate, row.timeout_rate];
    for (const range of ranges) {
      const slot = this.clocks[range].slot;
      const column = track.columns[range];
      for (let at = 0; at < values.length; at++) column[at * POINTS + slot] = values[at] ?? NaN;
    }
  }

  /** Make room for another track, if one has been idle for a while; looked for once in a round. */
  dropIdlest() {
    if (this.fullRound === this.round) return false;
    let idlest = "";
    for (const [key, track] of this.tracks) {
      if (key !== "" && (idlest === "" || track.activeAt < this.tracks.get(idlest).activeAt)) idlest = key;
    }
    if (idlest === "" || this.round - this.tracks.get(idlest).activeAt < IDLE_ROUNDS) {
      this.fullRound = this.round;
      return false;
    }
    this.tracks.delete(idlest);
    return true;
  }

  forget(key) {
    this.tracks.delete(key);
    this.sparks.delete(key);
  }

  /** {t, series} of a queue, a topic with its channels, or of all ("" as topic); gaps are null. */
  read({ topic = "", channel = null, range = "10m" } = {}) {
    const clock = this.clocks[range];
    const column = this.tracks.get(keyOf(topic, channel))?.columns[range];
    const slots = clock.order();
    const series = {};
    SERIES.forEach((name, number) => {
      series[name] = slots.map((slot) => {
        const value = column ? column[number * POINTS + slot] : NaN;
        return Number.isNaN(value) ? null : value;
      });
    });
    return { t: slots.map((slot) => clock.times[slot]), series };
  }
}

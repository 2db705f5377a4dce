// The topics and channels as of the last round. No DOM.
//
// Rows are those of GET /api/v2/queues (docs/contract/console_api.md), as objects: one for each
// topic (`channel` null) and each channel. Both back ends fill the same model.

export const keyOf = (topic, channel) => (channel === null || channel === undefined ? topic : `${topic}/${channel}`);

const NAME = /^[.a-zA-Z0-9_-]{1,64}(#ephemeral)?$/;

/** What is wrong with the name of a topic or channel; null for nothing. */
export function invalidName(name) {
  if (!name) return "A name is needed.";
  if (name.replace(/#ephemeral$/, "").length > 64) return "At most 64 characters.";
  return NAME.test(name) ? null : "Letters, digits, . _ - only, and #ephemeral at the end.";
}

export class Model {
  constructor() {
    this.rows = new Map(); // key -> row
    this.topics = new Map(); // name -> the topic's row, with its channels' rows as `list`
    this.version = 0; // counts the rounds that changed something
  }

  /** Take a round over: rows that changed, [topic, channel] that are gone; `full` forgets the others. */
  apply(rows, { removed = [], full = false } = {}) {
    const changed = new Map(); // topic -> its channels' rows by name, null for one that is gone
    const partsOf = (topic) => changed.get(topic) ?? changed.set(topic, new Map()).get(topic);
    if (full) {
      this.rows.clear();
      this.topics.clear();
    }
    for (const row of rows) {
      this.rows.set(keyOf(row.topic, row.channel), row);
      const parts = partsOf(row.topic);
      if (row.channel !== null) parts.set(row.channel, row);
    }
    for (const [topic, channel] of removed) {
      this.rows.delete(keyOf(topic, channel));
      const parts = partsOf(topic);
      if (channel !== null) parts.set(channel, null);
    }
    if (!full && !changed.size) return;
    this.version += 1;
    for (const [topic, parts] of changed) this.group(topic, parts);
    this.nameOrigins();
  }

  /** Make the row of a topic anew, of which these channels have changed. */
  group(topic, parts) {
    const own = this.rows.get(topic);
    if (!own) {
      this.topics.delete(topic);
      return;
    }
    const kept = (this.topics.get(topic)?.list ?? []).filter((row) => !parts.has(row.channel));
    const list = [...kept, ...parts.values()].filter((row) => row !== null);
    list.sort((a, b) => (a.channel < b.channel ? -1 : 1));
    this.topics.set(topic, { ...own, list, dead_letters_of: null });
  }

  /** Tell the topics of dead letters whose they are. */
  nameOrigins() {
    const origins = new Map();
    for (const topic of this.topics.values()) {
      if (topic.dead_letter_topic) origins.set(topic.dead_letter_topic, topic.topic);
    }
    for (const topic of this.topics.values()) topic.dead_letters_of = origins.get(topic.topic) ?? null;
  }
}

// The topics and channels as of the last round. No DOM.
//
// Rows are those of GET /api/v2/queues (docs/contract/console_api.md), as objects: one for each
// topic (`channel` null) and each channel. Both back ends fill the same model.

export const keyOf = (topic, channel) => (channel === null || channel === undefined ? topic : `${topic}/${channel}`);

export class Model {
  constructor() {
    this.rows = new Map(); // key -> row
    this.topics = new Map(); // name -> the topic's row, with its channels' rows as `list`
  }

  /** Take a round over: rows that changed, [topic, channel] that are gone; `full` forgets the others. */
  apply(rows, { removed = [], full = false } = {}) {
    const touched = new Set();
    if (full) {
      this.rows.clear();
      this.topics.clear();
    }
    for (const row of rows) {
      this.rows.set(keyOf(row.topic, row.channel), row);
      touched.add(row.topic);
    }
    for (const [topic, channel] of removed) {
      this.rows.delete(keyOf(topic, channel));
      touched.add(topic);
    }
    if (touched.size) this.group(touched);
  }

  /** Make the rows of topics that have changed anew. */
  group(names) {
    const lists = new Map();
    for (const row of this.rows.values()) {
      if (row.channel !== null && names.has(row.topic)) {
        const list = lists.get(row.topic);
        if (list) list.push(row);
        else lists.set(row.topic, [row]);
      }
    }
    for (const name of names) {
      const own = this.rows.get(name);
      if (!own) {
        this.topics.delete(name);
        continue;
      }
      const list = (lists.get(name) ?? []).sort((a, b) => (a.channel < b.channel ? -1 : 1));
      const before = this.topics.get(name);
      this.topics.set(name, { ...own, list, dead_letters_of: before?.dead_letters_of ?? null });
    }
    this.nameOrigins();
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

// Where an answer came from: what the log no longer holds comes from the archive.

import { ask } from "./api.js";
import { count } from "./numbers.js";

/** The first sequence that the log holds of an event type; null if the caller may not know. */
export async function firstInLog(eventType) {
  try {
    const { streams } = await ask("GET", "api/v1/streams");
    return streams.find((stream) => stream.event_type === eventType)?.first ?? null;
  } catch {
    return null;
  }
}

/** Counts what came from where. */
export class Origin {
  constructor(first) {
    this.first = first;
    this.archive = 0;
    this.log = 0;
  }

  /** Look at events. */
  add(events) {
    for (const { sequence } of events) {
      if (sequence < this.first) this.archive += 1;
      else this.log += 1;
    }
  }

  /** The result in words; empty if nothing came, or if it cannot be told. */
  toString() {
    if (this.first === null || this.archive + this.log === 0) return "";
    if (!this.archive) return "All of it from the log.";
    if (!this.log) return "All of it from the archive.";
    return `${count(this.archive)} from the archive, ${count(this.log)} from the log.`;
  }
}

// Streams of the server: server-sent events read from the answer to a POST, which EventSource cannot do.

import { Refusal, send } from "./api.js";

const SILENCE = 60_000; // milliseconds without even a heartbeat after which a connection counts as dead
const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;

/** The frames of an event stream as they arrive: lists of [event, data], one list per piece of the answer. */
export async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      if (parts.length) yield parts.map(parseFrame);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseFrame(text) {
  let event = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return [event, JSON.parse(data.join("\n"))];
}

/** Read a stream to its end. Notifications go to `onEvents`, the other frames to `onFrame`. */
async function read(answer, onEvents, onFrame) {
  for await (const batch of frames(answer.body)) {
    const events = [];
    for (const [event, data] of batch) {
      if (data.specversion) events.push({ ...data, live: event === "live-notification" });
      else onFrame(event, data);
    }
    onEvents(events); // an empty list is a sign of life
  }
}

/** Replay what a request asks for; resolves with how it ended: `type` or `reason` of the last control frame. */
export async function replay(request, onEvents, signal) {
  const answer = await send("POST", "api/v1/replay", { body: request, accept: "text/event-stream", signal });
  let ending = { type: "broken", message: "The connection broke before the end." };
  try {
    await read(answer, onEvents, (event, data) => {
      if (event === "error") ending = { type: "error", message: data.message };
      if (["replay_completed", "notification_replay_limit_reached"].includes(data.type)) ending = data;
    });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
  }
  return ending;
}

/**
 * A watch that comes back by itself.
 *
 * After a break it asks for the last sequence it has seen plus one, or, if it has seen none, for what came since it
 * first connected. So nothing is lost and nothing comes twice. `onState` hears of every change.
 */
export class Watch {
  constructor(request, onEvents, onState) {
    this.request = request;
    this.last = null;
    this.connectedAt = null;
    this.reconnections = 0;
    this.#onEvents = onEvents;
    this.#onState = onState;
  }

  #onEvents;
  #onState;
  #abort = null;
  #stopped = false;
  #wakeUp = null;

  /** Connect, and stay connected until stopped or refused. */
  async run() {
    let wait = FIRST_WAIT;
    while (!this.#stopped) {
      const resumed = this.#resume();
      this.#tell("connecting", { resumed });
      let reason = "The connection broke.";
      try {
        reason = await this.#connect(resumed, () => { wait = FIRST_WAIT; });
      } catch (problem) {
        if (this.#stopped) break;
        if (problem instanceof Refusal && problem.status >= 400 && problem.status < 500 && problem.status !== 429) {
          return this.#tell("refused", { refusal: problem });
        }
        if (problem instanceof Refusal) reason = problem.message;
      }
      if (this.#stopped) break;
      this.#tell("waiting", { reason, seconds: wait / 1000 });
      await this.#pause(wait);
      wait = Math.min(wait * 2, LONGEST_WAIT);
      this.reconnections += 1;
    }
    this.#tell("stopped");
  }

  /** End it for good. */
  stop() {
    this.#stopped = true;
    this.#abort?.abort();
    this.#wakeUp?.();
  }

  #resume() {
    if (this.last !== null) return { from_id: String(this.last + 1) };
    if (this.connectedAt !== null) return { from_date: this.connectedAt };
    return {};
  }

  async #connect(resumed, onOpen) {
    this.#abort = new AbortController();
    const options = { body: { ...this.request, ...resumed }, accept: "text/event-stream", signal: this.#abort.signal };
    const answer = await send("POST", "api/v1/watch", options);
    let reason = "The connection broke.";
    let silence = setTimeout(() => this.#abort.abort(), SILENCE);
    try {
      await read(
        answer,
        (events) => {
          clearTimeout(silence);
          silence = setTimeout(() => this.#abort.abort(), SILENCE);
          if (!events.length) return;
          this.last = events[events.length - 1].sequence;
          this.#onEvents(events);
        },
        (event, data) => {
          if (event === "connection-closing") reason = data.message;
          if (event === "error") reason = data.message;
          if (data.type === "connection_established" || data.type === "replay_started") {
            this.connectedAt ??= data.timestamp;
            onOpen();
            this.#tell(data.type === "replay_started" ? "catching up" : "live", { resumed });
          }
          if (data.type === "replay_completed") this.#tell("live", { resumed });
        },
      );
    } finally {
      clearTimeout(silence);
    }
    return reason;
  }

  #pause(milliseconds) {
    return new Promise((resolve) => {
      this.#wakeUp = resolve;
      setTimeout(resolve, milliseconds);
    });
  }

  #tell(phase, more = {}) {
    this.#onState({ phase, last: this.last, reconnections: this.reconnections, ...more });
  }
}

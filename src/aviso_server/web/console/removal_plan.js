// What a removal would touch, found out without touching it.

import { ask, send } from "./api.js";
import { count, several } from "./numbers.js";

/** Stands for all streams; no stream can be called so. */
export const EVERYTHING = "*";

/**
 * How many notifications a removal would touch now, in words and as a number, with the word to type and the request to
 * send. `stream` may be EVERYTHING; with a `sequence` it is about one notification only.
 */
export async function planOf(stream, sequence) {
  const { streams, archive } = await ask("GET", "api/v1/admin/overview");
  if (stream === EVERYTHING) return ofAll(streams, archive);
  const found = streams.find((each) => each.stream === stream);
  return sequence === null ? ofStream(found, archive) : ofOne(found, sequence);
}

function ofAll(streams, archive) {
  const held = streams.reduce((sum, each) => sum + each.count, 0);
  const archived = streams.reduce((sum, each) => sum + onlyArchived(each, archive), 0);
  return {
    touched: held + archived,
    word: "everything",
    words: [`This would remove ${several(held, "notification")} of ${several(streams.length, "stream")}${andArchived(archived)}.`],
    request: ["DELETE", "api/v1/admin/wipe/all"],
  };
}

function ofStream(stream, archive) {
  const archived = onlyArchived(stream, archive);
  const range = stream.count ? `, sequences ${count(stream.first)} to ${count(stream.last)}` : "";
  return {
    touched: stream.count + archived,
    word: stream.event_type,
    words: [`This would remove ${several(stream.count, "notification")} of ${stream.event_type}${range}${andArchived(archived)}.`],
    request: ["DELETE", "api/v1/admin/wipe/stream", { body: { stream_name: stream.stream } }],
  };
}

async function ofOne(stream, sequence) {
  const word = `${stream.event_type}@${sequence}`;
  const found = await lookUp(stream.event_type, sequence);
  const words = found
    ? [`This would remove 1 notification, ${word}, stored ${found.time}.`, JSON.stringify(found.data)]
    : [`${word} does not exist: nothing would be removed.`];
  return { touched: found ? 1 : 0, word, words, request: ["DELETE", `api/v1/admin/notification/${encodeURIComponent(word)}`] };
}

/** The notification itself, null if it is not there. */
async function lookUp(eventType, sequence) {
  const body = { event_type: eventType, identifier: {}, from_id: String(sequence), to_id: String(sequence) };
  const answer = await send("POST", "api/v1/replay", { body, accept: "application/x-ndjson", lenient: true });
  const lines = (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return lines.find((line) => line.sequence === sequence) ?? null;
}

/** What the archive may hold that the log does not; some of it may have been removed before. */
function onlyArchived(stream, archive) {
  const covered = archive?.streams?.[stream.stream];
  return covered ? Math.max(0, Math.min(covered.last, stream.first - 1) - covered.first + 1) : 0;
}

function andArchived(archived) {
  return archived ? `, and up to ${count(archived)} more of the archive` : "";
}

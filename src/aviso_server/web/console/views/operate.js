// Operate: what the server holds, who reads it, what went wrong or is missing, and the tools to remove things.

import { ask } from "../api.js";
import { element } from "../dom.js";
import { Findings } from "../findings.js";
import { Notice } from "../notice.js";
import { bytes, clock, count, duration, perSecond, several } from "../numbers.js";
import { removal } from "../removal.js";
import { onSession } from "../session.js";
import { sparkline } from "../sparkline.js";
import { table } from "../table.js";
import { tile } from "../tile.js";

const PACE = 2000; // milliseconds between two looks
const REMEMBERED = 60; // looks
const THEIR_OWN = /^api\.request\.(parse|validation)\.failed$/; // events of requests that no operator can mend

/** The view; it looks at the server only while it is shown. */
export function operate() {
  const notice = new Notice();
  const tiles = element("div", { class: "tiles" });
  const streams = element("div", { class: "wide" });
  const watchers = element("div", { class: "wide" });
  const errors = element("div", { class: "wide" });
  const refused = element("div", { class: "wide" });
  const refusedWords = element("summary");
  const refusals = element("details", { hidden: true }, refusedWords, refused);
  const content = element("div", { class: "stack", hidden: true });
  const findings = new Findings();
  const tool = removal(() => look());
  const rates = new Rates();
  let timer = null;
  let asking = false;

  async function look() {
    if (asking) return;
    asking = true;
    try {
      const overview = await ask("GET", "api/v1/admin/overview");
      rates.add(overview);
      show(overview, overview.archive);
      content.hidden = false;
      notice.clear();
    } catch (problem) {
      content.hidden = true;
      if (problem.status === 401 || problem.status === 403) notice.say("calm", "Only administrators can see this.", problem.advice);
      else notice.refuse(problem);
    }
    asking = false;
  }

  function show(overview, archive) {
    const held = overview.streams.reduce((sum, stream) => sum + stream.count, 0);
    const live = overview.streams.reduce((sum, stream) => sum + stream.watchers.live, 0);
    const behind = overview.streams.reduce((sum, stream) => sum + stream.watchers.catching_up, 0);
    const trouble = archive?.reason ?? Object.values(archive?.streams ?? {}).find((stream) => stream.last_error)?.last_error;
    tiles.replaceChildren(
      tile("Log", overview.log.kind, overview.log.connected ? "connected" : "away", overview.log.connected ? "good" : "bad"),
      tile("Notifications held", count(held), several(overview.streams.length, "stream")),
      tile("Published", perSecond(rates.total()), "over the last seconds"),
      tile("Watchers", count(live + behind), behind ? `${count(behind)} catching up` : "all up to date", behind ? "busy" : ""),
      tile("Connections", count(overview.connections), `aviso-server ${overview.version}`),
      ...(archive ? [tile("Archive", archive.state, trouble ?? archiveWords(archive), trouble ? "bad" : archive.state === "running" ? "good" : "busy")] : []),
      ...findings.show(overview));
    streams.replaceChildren(streamTable(overview.streams, archive, rates));
    watchers.replaceChildren(watcherTable(overview.slowest_watchers));
    showErrors(overview.recent_errors);
    tool.offer(overview.streams);
  }

  /** What clients did wrong themselves is folded away from what an operator should know. */
  function showErrors(records) {
    const theirs = records.filter((record) => THEIR_OWN.test(record.event ?? ""));
    errors.replaceChildren(errorTable("Recent warnings and errors", records.filter((record) => !theirs.includes(record))));
    refusals.hidden = !theirs.length;
    refusedWords.textContent = `${several(theirs.length, "request")} refused for faults of their own`;
    refused.replaceChildren(errorTable("Refused requests", theirs));
  }

  function watchOver(on) {
    clearInterval(timer);
    timer = null;
    if (!on) return;
    look();
    timer = setInterval(() => document.visibilityState === "visible" && look(), PACE);
  }

  onSession(() => timer && look());
  content.append(tiles,
    element("section", { class: "panel" }, element("h2", {}, "Streams"), streams),
    ...findings.nodes,
    element("section", { class: "panel" }, element("h2", {}, "Slow watchers"), watchers),
    element("section", { class: "panel" }, element("h2", {}, "Recent warnings and errors"), errors, refusals),
    tool.node);
  const node = element("div", { class: "page" },
    element("h1", {}, "Operate"),
    element("p", { class: "lead" }, "What this server holds and how it is doing. Updated every two seconds."),
    notice.node, content);
  return { node, shown: () => watchOver(true), hidden: () => watchOver(false) };
}

/** Notifications per second of every stream, from what the last looks saw. */
class Rates {
  #looks = [];

  add({ time, streams }) {
    this.#looks.push({ time: Date.parse(time), last: Object.fromEntries(streams.map((stream) => [stream.stream, stream.last])) });
    this.#looks = this.#looks.slice(-REMEMBERED - 1);
  }

  /** One rate for each pair of looks. */
  of(stream) {
    const rates = [];
    for (let place = 1; place < this.#looks.length; place += 1) {
      const [before, after] = [this.#looks[place - 1], this.#looks[place]];
      const seconds = (after.time - before.time) / 1000;
      if (seconds > 0) rates.push(Math.max(0, ((after.last[stream] ?? 0) - (before.last[stream] ?? after.last[stream] ?? 0)) / seconds));
    }
    return rates;
  }

  /** The rate of one stream over the last few looks. */
  now(stream) {
    const rates = this.of(stream).slice(-5);
    return rates.length ? rates.reduce((sum, rate) => sum + rate, 0) / rates.length : 0;
  }

  total() {
    const names = Object.keys(this.#looks[this.#looks.length - 1]?.last ?? {});
    return names.reduce((sum, name) => sum + this.now(name), 0);
  }
}

function archiveWords(archive) {
  const lags = Object.values(archive.streams ?? {}).map((stream) => stream.lag ?? 0);
  const job = archive.job ? `job ${archive.job}` : "";
  return [job, lags.length ? (Math.max(...lags) ? `${count(Math.max(...lags))} behind at most` : "up to date") : ""].filter(Boolean).join(", ");
}

function streamTable(streams, archive, rates) {
  const heads = ["Event type", "Sequences", "Held", "Size", "Rate", "Retention", "Watchers"];
  if (archive) heads.push("Archive");
  const rows = streams.map((stream) => {
    const cells = [
      element("code", {}, stream.event_type),
      stream.count ? `${count(stream.first)} to ${count(stream.last)}` : stream.last ? `none left, next is ${count(stream.last + 1)}` : "none yet",
      count(stream.count),
      bytes(stream.bytes),
      element("span", { class: "rate" }, sparkline(rates.of(stream.stream), `Rate of ${stream.event_type}`), perSecond(rates.now(stream.stream))),
      retention(stream.retention),
      watcherWords(stream.watchers),
    ];
    if (archive) cells.push(archived(archive.streams?.[stream.stream]));
    return cells;
  });
  return table("Streams", heads, rows, "No event types are configured and nothing was published.");
}

function retention({ seconds, max_messages: messages, max_bytes: size, newest_of_each_topic_only: newest }) {
  const limits = [seconds && duration(seconds), messages && several(messages, "notification"), size && bytes(size), newest && "newest of each topic"];
  return limits.filter(Boolean).join(", ") || "everything";
}

function watcherWords({ live, catching_up: behind, furthest_behind: furthest }) {
  if (!live && !behind) return "none";
  return behind ? `${count(live)} live, ${count(behind)} catching up, ${count(furthest)} behind at most` : `${count(live)} live`;
}

function archived(state) {
  if (!state) return "–";
  if (state.last_error) return element("span", { class: "bad" }, state.last_error);
  if (!state.last) return `nothing yet, ${lagWords(state.lag)}`;
  const size = state.files ? `, ${several(state.files, "file")}, ${bytes(state.bytes)}` : ""; // not known until the archive is up
  return `up to ${count(state.last)}, ${lagWords(state.lag)}${size}`;
}

function lagWords(lag) {
  if (lag === null || lag === undefined) return "lag unknown";
  return lag ? `${count(lag)} behind` : "up to date";
}

function watcherTable(watchers) {
  const rows = watchers.map((watcher) => [
    element("code", {}, watcher.topic), watcher.user ?? "not known", watcher.catching_up ? "catching up" : "live",
    count(watcher.behind), bytes(watcher.backlog_bytes), element("code", { class: "soft" }, watcher.request_id),
  ]);
  return table("Slow watchers", ["Topic", "User", "State", "Behind", "Waiting", "Request"], rows, "Every watcher keeps up.");
}

function errorTable(label, records) {
  const rows = inARow(records).slice(0, 20).map(([record, times]) => [
    element("time", { datetime: record.time }, clock(record.time)),
    element("span", { class: record.level === "ERROR" ? "bad" : "warn" }, record.level),
    times > 1 ? `${record.message} (and ${count(times - 1)} more like it)` : record.message,
    record.request_id ? element("code", { class: "soft" }, record.request_id) : "",
  ]);
  return table(label, ["Time", "Level", "Message", "Request"], rows, "None since the server started.");
}

/** The newest of records that tell of the same event one after the other, and how many there are; each request stands for itself. */
export function inARow(records) {
  const rows = [];
  for (const record of records) {
    const before = rows[rows.length - 1];
    const same = before && record.event && before[0].event === record.event && !record.request_id && !before[0].request_id;
    if (same) before[1] += 1;
    else rows.push([record, 1]);
  }
  return rows;
}

// Insight: what was published, when, where and how late, from the tables that the server makes of its archive.

import { ask } from "../api.js";
import { ranking, timeBars, timeLines } from "../charts.js";
import { announce, element, newId } from "../dom.js";
import { Legend } from "../legend.js";
import { WorldMap } from "../map.js";
import { Notice } from "../notice.js";
import { count, several, stamp } from "../numbers.js";
import { onSession } from "../session.js";
import { tile } from "../tile.js";

const SPANS = [[1, "the last day"], [7, "the last 7 days"], [30, "the last 30 days"], [365, "the last year"]];
const PACE = 60_000; // milliseconds between two looks
const SHOWN = 15; // values
const LINES = [["earliest 5 %", (row) => row.percentiles[5]], ["median", (row) => row.percentiles[50]], ["latest 5 %", (row) => row.percentiles[95]]];

/** What the server has; an empty list if it has nothing. */
export async function whatThereIs() {
  try {
    return (await ask("GET", "api/v1/insight")).event_types;
  } catch {
    return [];
  }
}

/** The view. */
export function insight() {
  const notice = new Notice();
  const type = element("select", { id: newId("insight-type"), onchange: () => choose() });
  const span = element("select", { id: newId("insight-span"), onchange: () => look() }, SPANS.map(([days, words]) => element("option", { value: days, selected: days === 7 }, words)));
  const field = element("select", { id: newId("insight-field"), onchange: () => look() });
  const tiles = element("div", { class: "tiles" });
  const hours = element("div");
  const values = element("div", { class: "wide" });
  const delays = panel("How late");
  const where = panel("Where");
  const seen = element("div", { class: "wide" });
  const map = new WorldMap("World map with the cells that notifications touch. Drag or use the arrow keys to move, plus and minus to zoom.");
  const mapWords = element("p", { class: "soft" });
  const legend = new Legend(map);
  where.append(mapWords, map.node);
  const content = element("div", { class: "stack", hidden: true },
    tiles, panel("When", hours), delays, where,
    panel("Values", element("div", { class: "field insight-field" }, element("label", { for: field.id }, "Field"), field), values),
    panel("First and last seen", seen));
  let there = [];
  let timer = null;
  let asked = 0;

  async function start() {
    there = (await whatThereIs()).sort((one, other) => other.notifications - one.notifications); // the busiest first
    const before = type.value;
    type.replaceChildren(...there.map((each) => element("option", { value: each.event_type }, each.event_type)));
    content.hidden = !there.length;
    if (!there.length) return notice.say("calm", "Nothing yet.", "The tables are updated from the archive every few minutes.");
    if (there.some((each) => each.event_type === before)) type.value = before;
    await choose();
  }

  async function choose() {
    map.unfit();
    field.replaceChildren();
    await look();
  }

  /** Ask for everything; an answer that comes after a newer question is dropped. */
  async function look() {
    const mine = asked += 1;
    const about = there.find((each) => each.event_type === type.value);
    const from = new Date(Date.parse(about.last) - (span.value * 24 - 1) * 3_600_000).toISOString();
    const query = (name, more = {}) => {
      const words = new URLSearchParams({ from, to: about.last, ...more });
      return ask("GET", `api/v1/insight/${encodeURIComponent(type.value)}/${name}?${words}`);
    };
    try {
      const names = ["hours", "fields", "seen", ...["delays", "coverage"].filter((name) => about.tables.includes(name))];
      const found = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await query(name)])));
      if (mine !== asked) return;
      show(found);
      notice.clear();
      content.hidden = false;
      announce(`Insight of ${type.value} is shown`);
    } catch (problem) {
      if (mine !== asked) return;
      content.hidden = true;
      notice.refuse(problem);
    }
  }

  function show(found) {
    const total = found.hours.rows.reduce((sum, row) => sum + row.count, 0);
    tiles.replaceChildren(
      tile("Notifications", count(total), SPANS.find(([days]) => days === Number(span.value))[1]),
      tile("In all", count(found.hours.notifications), `since ${stamp(found.hours.first)}`),
      tile("Last", stamp(found.hours.last), "UTC"),
      ...(found.delays?.run ? [tile("Usual delay", duration(found.delays.run.percentiles[50]), `95 % within ${duration(found.delays.run.percentiles[95])}`)] : []),
      tile("Counted", stamp(found.hours.updated), `up to sequence ${count(found.hours.through)}`));
    hours.replaceChildren(timeBars(found.hours.rows, found.hours));
    showDelays(found.delays);
    where.hidden = !found.coverage?.cells.length;
    map.showCells(found.coverage?.cells ?? [], found.coverage?.highest ?? 1);
    legend.density(found.coverage?.highest ?? 1);
    map.fit(true);
    mapWords.textContent = where.hidden ? "" : `${several(found.coverage.cells.length, "cell")} of one degree, at most ${several(found.coverage.highest, "notification")} in one.`;
    showValues(found.fields.fields);
    showSeen(found.seen.fields);
  }

  function showDelays(found) {
    delays.hidden = !found?.run;
    if (delays.hidden) return;
    const kinds = [["run", "After date and time"], ["valid", "After date, time and step"]].filter(([name]) => found[name]);
    delays.replaceChildren(delays.firstChild, ...kinds.flatMap(([name, words]) => [element("h3", {}, words), timeLines(found[name].rows, found, LINES, duration)]));
  }

  function showValues(fields) {
    const before = field.value || best(fields);
    field.replaceChildren(...fields.map((each) => element("option", { value: each.field, selected: each.field === before }, each.field)));
    const chosen = fields.find((each) => each.field === field.value);
    if (!chosen) return values.replaceChildren(element("p", { class: "empty" }, "No fields."));
    const rows = chosen.bins?.map((bin) => ({ value: `${bin.from} to ${bin.to}`, count: bin.count })) ?? chosen.values.slice(0, SHOWN);
    const total = chosen.other + chosen.values.reduce((sum, each) => sum + each.count, 0);
    const other = total - rows.reduce((sum, each) => sum + each.count, 0);
    values.replaceChildren(ranking(`Values of ${chosen.field}`, other ? [...rows, { value: chosen.bins ? "rare values, of any size" : "all others", count: other }] : rows));
  }

  function showSeen(fields) {
    const chosen = fields.find((each) => each.field === field.value);
    const heads = ["Value", "Notifications", "First", "Last"];
    seen.replaceChildren(element("table", { "aria-label": "First and last seen" },
      element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, (chosen?.values ?? []).slice(0, SHOWN).map((each) => element("tr", {},
        element("th", { scope: "row" }, each.value), [count(each.count), stamp(each.first), stamp(each.last)].map((cell, place) => element("td", { "data-head": heads[place + 1] }, cell)))))));
  }

  onSession(() => timer && start());
  const node = element("div", { class: "page" },
    element("h1", {}, "Insight"),
    element("p", { class: "lead" }, "What was published, when, where and how late: counted in the archive every few minutes."),
    element("div", { class: "panel row insight-choice" },
      element("div", { class: "field" }, element("label", { for: type.id }, "Event type"), type),
      element("div", { class: "field" }, element("label", { for: span.id }, "Time"), span)),
    notice.node, content);
  return {
    node,
    shown: () => {
      start();
      timer ??= setInterval(() => document.visibilityState === "visible" && start(), PACE);
    },
    hidden: () => {
      clearInterval(timer);
      timer = null;
    },
  };
}

/** The first field of which most values are known one by one. */
function best(fields) {
  return fields.toSorted((one, other) => one.other - other.other)[0]?.field;
}

function panel(title, ...children) {
  return element("section", { class: "panel" }, element("h2", {}, title), children);
}

/** Seconds as people say them, before or after. */
function duration(seconds) {
  const size = Math.abs(seconds);
  const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, each]) => size >= 2 * each) ?? ["s", 1];
  return `${seconds < 0 ? "−" : ""}${length === 1 ? size : (size / length).toFixed(1)} ${unit}`;
}

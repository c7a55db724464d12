// What audits, the watch over late notifications and loads have found. A panel is there only if the server has something to say.

import { element } from "./dom.js";
import { clock, count, several } from "./numbers.js";
import { table } from "./table.js";
import { tile } from "./tile.js";

const KINDS = { clean: "good", defects: "bad", unchecked: "warn" };
const SHOWN = 5; // defects of a stream, reasons of a load

/** The panels of Operate; `show` takes an overview and says what of it deserves a tile. */
export class Findings {
  constructor() {
    this.nodes = [this.#audit.node, this.#lateness.node, this.#quarantine.node];
  }

  #audit = new Panel("Audit");
  #lateness = new Panel("Lateness");
  #quarantine = new Panel("Quarantine");

  show({ audit, lateness, quarantine }) {
    this.#audit.show(audit, auditWords, auditTable);
    this.#lateness.show(lateness, latenessWords, latenessTable);
    this.#quarantine.show(quarantine, quarantineWords, quarantineTable);
    return [
      ...(audit ? [tile("Audit", audit.verdict, clock(audit.at), { clean: "good", defects: "bad" }[audit.verdict] ?? "busy")] : []),
      ...(lateness ? [tile("Overdue", count(lateness.overdue_count), `of ${count(lateness.watched)} expected`, lateness.overdue_count ? "busy" : "")] : []),
    ];
  }
}

class Panel {
  constructor(title) {
    this.#words = element("p", { class: "soft" });
    this.#content = element("div", { class: "wide" });
    this.node = element("section", { class: "panel", "aria-label": title, hidden: true }, element("h2", {}, title), this.#words, this.#content);
  }

  #words;
  #content;
  #shown = "";

  /** Draw it again only if something changed, so that a text that somebody has selected stays selected. */
  show(found, words, content) {
    this.node.hidden = !found;
    const text = JSON.stringify(found ?? null);
    if (!found || text === this.#shown) return;
    this.#shown = text;
    this.#words.textContent = words(found);
    this.#content.replaceChildren(content(found));
  }
}

function when(instant) {
  return element("time", { datetime: instant }, clock(instant));
}

function auditWords({ at, verdict, seconds }) {
  const said = { clean: "No defects.", defects: "Defects were found.", unchecked: "Not everything could be checked." }[verdict] ?? "";
  return `${said} Audited at ${clock(at)} UTC in ${several(Math.max(1, Math.round(seconds)), "second")}.`;
}

function auditTable({ streams }) {
  const heads = ["Event type", "Verdict", "Defects", "Acknowledged", "Not archived yet", "First defects"];
  const rows = Object.values(streams).map((stream) => [
    element("code", {}, stream.event_type), element("span", { class: KINDS[stream.verdict] ?? "" }, stream.verdict),
    count(stream.defects), count(stream.acknowledged), count(stream.lag), defects(stream.first_defects),
  ]);
  return table("Audit", heads, rows, "No stream was audited.");
}

function defects(found) {
  if (!found.length) return "none";
  const words = found.slice(0, SHOWN).map(({ kind, where, first, last }) => {
    const sequences = first === last ? `sequence ${count(first)}` : `sequences ${count(first)} to ${count(last)}`;
    return element("li", {}, `${kind} in ${where}: ${sequences}`);
  });
  return element("ul", { class: "reasons" }, words, found.length > SHOWN ? element("li", {}, "and more") : null);
}

function latenessWords({ learned_at: learned, watched, overdue_count: overdue, overdue: listed }) {
  if (!learned) return "The schedule has not been learned yet.";
  const more = overdue > listed.length ? ` Showing the ${count(listed.length)} that are overdue the longest.` : "";
  return `${several(watched, "combination")} expected. Schedule learned ${clock(learned)} UTC.${more}`;
}

function latenessTable({ overdue }) {
  const rows = overdue.map((each) => [element("code", {}, each.event_type), element("code", {}, each.combination), when(each.expected_at), when(each.since)]);
  return table("Overdue", ["Event type", "Combination", "Expected", "Overdue since"], rows, "Nothing is overdue.");
}

function quarantineWords({ count: all, tables }) {
  const newest = all > tables.length ? ` Showing the newest ${count(tables.length)} of ${several(all, "table")}.` : "";
  return `Rows refused by loads. The tables are in the folder quarantine in archive.work_path.${newest}`;
}

function quarantineTable({ tables }) {
  const rows = tables.map((each) => [element("code", {}, each.event_type), when(each.at), count(each.rows), reasons(each), element("code", { class: "soft" }, each.file)]);
  return table("Quarantine", ["Event type", "When", "Rows", "Reasons", "Table"], rows, "None of the tables can be read.");
}

function reasons({ reasons: all, rows }) {
  const listed = all.slice(0, SHOWN);
  const others = rows - listed.reduce((sum, each) => sum + each.rows, 0);
  return element("ul", { class: "reasons" },
    listed.map((each) => element("li", { title: each.code }, `${count(each.rows)} × ${each.reason}`)),
    others ? element("li", {}, `${count(others)} for other reasons`) : null);
}

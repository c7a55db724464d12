// What a filter means, what it would have brought, and why it lets a notification through.

import { ask } from "./api.js";
import { timeBars } from "./charts.js";
import { button, element, newId } from "./dom.js";
import { Notice } from "./notice.js";
import { several } from "./numbers.js";

const SPANS = [[1, "last day"], [7, "last 7 days"], [30, "last 30 days"], [366, "last year"]];
const UNITS = { hour: 3_600_000, day: 86_400_000 };

/**
 * A button and a panel that try a filter on the past.
 *
 * `request` says what the filter is now; `refused` hears of a refusal and says whether it has shown it at its field.
 */
export class BackTest {
  constructor(request, refused) {
    this.#request = request;
    this.#refused = refused;
    const id = newId("back-test");
    this.button = button("Back-test", () => this.#open(), { "aria-controls": id, "aria-expanded": "false", title: "What this filter means, and what it would have matched" });
    this.#days = element("select", { "aria-label": "Time to try it on", onchange: () => this.#run() },
      SPANS.map(([days, words]) => element("option", { value: days, selected: days === 7 }, words)));
    this.#notice = new Notice();
    this.#content = element("div");
    this.node = element("section", { class: "panel back-test", id, "aria-label": "Back-test", hidden: true },
      element("div", { class: "head" }, element("h2", {}, "Back-test"),
        element("div", { class: "row" }, this.#days, button("Close", () => this.#close(), { class: "button quiet small" }))),
      this.#notice.node, this.#content);
  }

  #request;
  #refused;
  #days;
  #notice;
  #content;
  #running = null;

  #open() {
    this.node.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.#run();
  }

  #close() {
    this.#hide();
    this.button.focus();
  }

  #hide() {
    this.#running?.abort();
    this.node.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
  }

  async #run() {
    this.#running?.abort();
    const running = this.#running = new AbortController();
    this.#content.replaceChildren();
    this.#notice.say("busy", "Counting …");
    this.node.scrollIntoView({ block: "nearest" });
    try {
      const { meaning, matches } = await explain(this.#request(), { days: Number(this.#days.value) }, running.signal);
      this.#show(meaning, matches);
    } catch (problem) {
      if (running.signal.aborted) return;
      this.#notice.refuse(problem);
      if (this.#refused(problem)) this.#hide();
    }
  }

  #show(meaning, { count, days, source, times }) {
    const span = SPANS.find(([each]) => each === days)[1];
    const found = count ? several(count, "notification") : "No notification";
    this.#notice.say(count ? "good" : "calm", `${found} of the ${span} would have matched.`, count ? `Counted in the ${source.join(" and the ")}.` : "");
    const rows = times.counts.filter((each) => each.count).map((each) => ({ time: each.start, count: each.count }));
    const [from, last] = [times.counts[0].start, times.counts[times.counts.length - 1].start];
    const to = new Date(Date.parse(last) + UNITS[times.unit]).toISOString();
    this.#content.replaceChildren(element("p", { class: "meaning" }, meaning.sentence),
      ...(rows.length ? [timeBars(rows, { from, to, step: times.unit })] : []));
  }
}

/** Why a notification passes the filter that brought it: every clause, and what it saw. */
export async function whyHere(filter, id) {
  const { notification } = await explain(filter, { days: 0, notification_id: id });
  return [
    element("p", {}, notification.sentence),
    element("ul", { class: "clauses" }, notification.clauses.map(({ passed, sentence, seen }) => element("li", { "data-passed": String(passed) },
      element("span", { class: "unseen" }, passed ? "true: " : "not true: "), sentence, seen === null ? null : element("span", { class: "soft" }, ` — it has ${seen}`)))),
  ];
}

function explain({ event_type, identifier }, more, signal) {
  return ask("POST", "api/v1/explain", { body: { event_type, identifier, ...more }, signal });
}

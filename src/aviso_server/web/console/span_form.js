// Which part of the past: where to begin and where to end.

import { element, newId } from "./dom.js";

const KINDS = { start: "Beginning", date: "Date", sequence: "Sequence" };

/** The controls for the start and the end of a replay. All times are UTC. */
export class SpanForm {
  constructor() {
    const id = newId("begin");
    this.#kinds = Object.keys(KINDS).map((kind, place) =>
      element("input", { type: "radio", name: id, value: kind, checked: place === 0, onchange: () => this.#show() }));
    this.#from = new Instant("Start", Date.now() - 3_600_000);
    this.#sequence = element("input", { type: "number", min: 0, value: 1, "aria-label": "Start with sequence" });
    this.#to = new Instant("End", null);
    const chips = this.#kinds.map((input) => element("label", { class: "chip" }, input, element("span", {}, KINDS[input.value])));
    this.node = element("div", { class: "fields" },
      element("fieldset", { class: "field" }, element("legend", {}, "Start at"),
        element("div", { class: "chips" }, chips), this.#from.node, this.#sequence),
      element("fieldset", { class: "field" }, element("legend", {}, "End at"), this.#to.node,
        element("p", { class: "field-hint" }, "Leave empty for the newest. Times are UTC.")));
    this.#show();
  }

  #kinds;
  #from;
  #sequence;
  #to;

  get #kind() {
    return this.#kinds.find((input) => input.checked).value;
  }

  #show() {
    this.#from.node.hidden = this.#kind !== "date";
    this.#sequence.hidden = this.#kind !== "sequence";
  }

  /** The span as part of a request. */
  read() {
    const request = {};
    if (this.#kind === "start") request.from_id = "1";
    if (this.#kind === "sequence") request.from_id = this.#sequence.value.trim();
    if (this.#kind === "date") request.from_date = this.#from.read();
    const end = this.#to.read();
    return end === undefined ? request : { ...request, to_date: end };
  }

  /** Take over two times in milliseconds. */
  write([from, to]) {
    this.#kinds.find((input) => input.value === "date").checked = true;
    this.#from.write(from);
    this.#to.write(to + 1);
    this.#show();
  }
}

/** A day and a time of day; without a day it is no time at all. */
class Instant {
  constructor(name, start) {
    this.#day = element("input", { type: "date", max: "9999-12-31", "aria-label": `${name}: day` });
    this.#time = element("input", { type: "text", class: "time", placeholder: "00:00:00", autocomplete: "off", "aria-label": `${name}: time of day` });
    this.node = element("div", { class: "row" }, this.#day, this.#time);
    if (start !== null) this.write(start);
  }

  #day;
  #time;

  read() {
    if (!this.#day.value) return undefined;
    const [hours = "00", minutes = "00", seconds = "00"] = (this.#time.value.trim() || "00").split(":");
    return `${this.#day.value}T${hours.padStart(2, "0")}:${minutes}:${seconds}Z`;
  }

  write(milliseconds) {
    const text = new Date(milliseconds).toISOString();
    [this.#day.value, this.#time.value] = [text.slice(0, 10), text.slice(11, 19)];
  }
}

// What the colours on the map mean: a number of the events, or how many there are.

import { element, newId } from "./dom.js";
import { count } from "./numbers.js";

const STOPS = [[44, 123, 182], [0, 158, 150], [240, 160, 48], [215, 25, 28]]; // few, or low, to many, or high
const LOOKED_AT = 50; // events that say which numbers there are

/** A box on the map: choose a number to colour by, and read what the colours mean. */
export class Legend {
  constructor(map, onChange) {
    const id = newId("colour-by");
    this.#select = element("select", { id, onchange: onChange }, element("option", { value: "" }, "one colour"));
    this.#choice = element("div", {}, element("label", { for: id }, "Colour by"), " ", this.#select);
    this.#low = element("span");
    this.#high = element("span");
    this.#scale = element("p", { class: "scale", hidden: true }, this.#low, element("i", { "aria-hidden": "true" }), this.#high);
    this.#node = map.legend;
    this.#node.append(this.#choice, this.#scale);
  }

  #node;
  #select;
  #choice;
  #scale;
  #low;
  #high;

  /** Give events the colour of the chosen number. */
  colour(events) {
    this.#node.classList.remove("density");
    this.#offer(events);
    const name = this.#select.value;
    const numbers = name ? events.map((event) => numbersOf(event)[name]).filter((number) => number !== undefined) : [];
    let [low, high] = [Infinity, -Infinity];
    for (const number of numbers) [low, high] = [Math.min(low, number), Math.max(high, number)];
    for (const event of events) {
      const number = name ? numbersOf(event)[name] : undefined;
      event.tint = number === undefined ? undefined : tint(high > low ? (number - low) / (high - low) : 0.5);
    }
    this.#say(numbers.length > 0, String(low), String(high));
  }

  /** Say that colours are how many there are. */
  density(highest) {
    this.#node.hidden = false;
    this.#node.classList.add("density");
    this.#choice.hidden = true;
    this.#say(true, "1", `${count(highest)} per square degree`);
  }

  #say(shown, low, high) {
    this.#scale.hidden = !shown;
    [this.#low.textContent, this.#high.textContent] = [low, high];
  }

  #offer(events) {
    const names = [...new Set(events.slice(0, LOOKED_AT).flatMap((event) => Object.keys(numbersOf(event))))].sort();
    const before = this.#select.value;
    const offered = [...this.#select.options].slice(1).map((option) => option.value);
    if (names.join() !== offered.join()) {
      this.#select.replaceChildren(this.#select.options[0], ...names.map((name) => element("option", { value: name }, name)));
      this.#select.value = names.includes(before) ? before : "";
    }
    this.#choice.hidden = false;
    this.#node.hidden = !names.length;
  }
}

/** The numbers of an event by name: those of its identifier, and those on top of its payload. */
function numbersOf(event) {
  return event.numbers ??= Object.fromEntries([
    ...Object.entries(event.data.identifier).filter(([, value]) => /^-?(0|[1-9]\d*)(\.\d+)?$/.test(value)), // 0600 is a time
    ...Object.entries(event.data.payload ?? {}).filter(([, value]) => typeof value === "number").map(([name, value]) => [`payload.${name}`, value]),
  ].map(([name, value]) => [name, Number(value)]).filter(([, number]) => Number.isFinite(number)));
}

/** A colour for a share between 0 and 1. */
function tint(share) {
  const place = Math.min(STOPS.length - 2, Math.floor(share * (STOPS.length - 1)));
  const part = share * (STOPS.length - 1) - place;
  const mixed = STOPS[place].map((from, colour) => Math.round(from + (STOPS[place + 1][colour] - from) * part));
  return `rgb(${mixed.join(" ")})`;
}

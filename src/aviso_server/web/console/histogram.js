// When things happened: bars over time, and a part of it to choose by dragging or with the keyboard.

import { drawing, element } from "./dom.js";
import { clock, clocks, duration, several } from "./numbers.js";

const MOST = 120; // bars
const FEWEST = 40;
const WIDTH = 1000;
const HEIGHT = 90;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((seconds) => seconds * 1000);

/** Counts by time. The bars become wider as the time becomes longer, so that there are never too many of them. */
export class Histogram {
  constructor(onBrush) {
    this.#onBrush = onBrush;
    this.#bars = drawing("g", { class: "bars" });
    this.#brush = drawing("rect", { class: "brush", y: 0, height: HEIGHT, width: 0 });
    this.#picture = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "Notifications over time" }, this.#bars, this.#brush);
    this.#axis = element("p", { class: "axis" }, element("span"), element("span"), element("span"));
    const slider = (label) => element("input", { type: "range", min: 0, max: 1, value: 0, "aria-label": label, oninput: () => this.#fromSliders() });
    this.#from = slider("First bar of the chosen time");
    this.#to = slider("Last bar of the chosen time");
    this.#sliders = element("div", { class: "brush-sliders" }, element("label", {}, "From", this.#from), element("label", {}, "To", this.#to));
    this.#height = element("p", { class: "soft" });
    this.node = element("div", { class: "histogram", hidden: true }, this.#height, this.#picture, this.#axis, this.#sliders);
    this.#listen();
  }

  #onBrush;
  #bars;
  #brush;
  #picture;
  #axis;
  #height;
  #from;
  #to;
  #sliders;
  #width = STEPS[0];
  #counts = new Map();
  #due = false;

  /** Begin anew. */
  clear() {
    this.#counts.clear();
    this.#width = STEPS[0];
    this.#choose(null);
    this.node.hidden = true;
  }

  /** Count events. */
  add(events) {
    for (const event of events) {
      event.milliseconds ??= Date.parse(event.time);
      const bar = Math.floor(event.milliseconds / this.#width);
      this.#counts.set(bar, (this.#counts.get(bar) ?? 0) + 1);
    }
    while (this.#range()[1] - this.#range()[0] >= MOST) this.#widen();
    if (!events.length || this.#due) return;
    this.#due = true;
    setTimeout(() => requestAnimationFrame(() => this.#draw()), 100);
  }

  #range() {
    let [first, last] = [Infinity, -Infinity];
    for (const bar of this.#counts.keys()) {
      first = Math.min(first, bar);
      last = Math.max(last, bar);
    }
    if (!this.#counts.size) return [0, 0];
    // a few bars alone would be very wide: time without anything goes on both sides
    const room = Math.max(0, Math.ceil((FEWEST - (last - first + 1)) / 2));
    return [first - room, last + room];
  }

  #widen() {
    const wider = STEPS.find((step) => step > this.#width && step % this.#width === 0) ?? this.#width * 2;
    const factor = wider / this.#width;
    const counts = new Map();
    for (const [bar, number] of this.#counts) {
      const place = Math.floor(bar / factor);
      counts.set(place, (counts.get(place) ?? 0) + number);
    }
    [this.#width, this.#counts] = [wider, counts];
  }

  #draw() {
    this.#due = false;
    if (!this.#counts.size) return;
    this.node.hidden = false;
    const [first, last] = this.#range();
    const highest = Math.max(...this.#counts.values());
    this.#height.textContent = `At most ${several(highest, "notification")} in ${duration(this.#width / 1000)}`;
    const step = WIDTH / (last - first + 1);
    const rects = [];
    for (const [bar, number] of this.#counts) {
      const height = Math.max(3, (number / highest) * (HEIGHT - 4));
      const title = drawing("title", {}, `${clock(bar * this.#width)} UTC: ${several(number, "notification")}`);
      rects.push(drawing("rect", { x: (bar - first) * step + step * 0.08, y: HEIGHT - height, width: step * 0.84, height }, title));
    }
    this.#bars.replaceChildren(...rects);
    const ends = [first * this.#width, ((first + last + 1) / 2) * this.#width, (last + 1) * this.#width];
    const words = clocks(ends);
    [...this.#axis.children].forEach((node, place) => { node.textContent = words[place]; });
    this.#picture.setAttribute("aria-label", `Notifications over time, from ${words[0]} to ${words[2]} UTC`);
    for (const slider of [this.#from, this.#to]) slider.max = last - first;
    if (!this.#chosen) this.#to.value = last - first;
  }

  #chosen = null;

  #choose(bars) {
    this.#chosen = bars;
    const [first, last] = this.#range();
    const step = WIDTH / (last - first + 1);
    this.#brush.setAttribute("x", bars ? bars[0] * step : 0);
    this.#brush.setAttribute("width", bars ? (bars[1] - bars[0] + 1) * step : 0);
    [this.#from.value, this.#to.value] = bars ?? [0, last - first];
    this.#onBrush(bars ? [(first + bars[0]) * this.#width, (first + bars[1] + 1) * this.#width - 1] : null);
  }

  /** Forget the chosen time. */
  unbrush() {
    this.#choose(null);
  }

  #fromSliders() {
    const ends = [Number(this.#from.value), Number(this.#to.value)].sort((one, other) => one - other);
    const [first, last] = this.#range();
    this.#choose(ends[0] === 0 && ends[1] === last - first ? null : ends);
  }

  #listen() {
    let start = null;
    const barAt = (event) => {
      const box = this.#picture.getBoundingClientRect();
      const [first, last] = this.#range();
      const bars = last - first + 1;
      return Math.max(0, Math.min(bars - 1, Math.floor(((event.clientX - box.left) / box.width) * bars)));
    };
    this.#picture.addEventListener("pointerdown", (event) => {
      this.#picture.setPointerCapture(event.pointerId);
      start = barAt(event);
    });
    this.#picture.addEventListener("pointermove", (event) => {
      if (start === null) return;
      this.#choose([start, barAt(event)].sort((one, other) => one - other));
    });
    this.#picture.addEventListener("pointerup", (event) => {
      if (start === barAt(event) && !this.#chosen) this.#choose([start, start]);
      start = null;
    });
    this.#picture.addEventListener("dblclick", () => this.#choose(null));
  }
}

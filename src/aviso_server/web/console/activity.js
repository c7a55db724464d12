// How much came in each second of the last minute.

import { drawing, element } from "./dom.js";
import { perSecond } from "./numbers.js";

const SECONDS = 60;
const HEIGHT = 60;

/** Bars that move to the left once per second. */
export class Activity {
  constructor() {
    this.words = element("span", { class: "soft" }, "nothing yet");
    this.#bars = drawing("g");
    const picture = drawing("svg", { class: "activity", viewBox: `0 0 ${SECONDS} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "Notifications in each second of the last minute" },
      drawing("line", { x1: 0, x2: SECONDS, y1: HEIGHT, y2: HEIGHT, "vector-effect": "non-scaling-stroke" }), this.#bars);
    this.node = element("div", {}, picture, element("p", { class: "axis" }, element("span", {}, "a minute ago"), element("span", {}, "30 s"), element("span", {}, "now")));
  }

  #bars;

  /** Show these counts, the newest last. */
  show(counts) {
    const highest = Math.max(...counts);
    this.words.textContent = highest ? `up to ${perSecond(highest)}` : "nothing";
    this.#bars.replaceChildren(...counts.flatMap((count, place) => {
      const height = (count / Math.max(highest, 1)) * (HEIGHT - 2);
      return count ? [drawing("rect", { x: SECONDS - counts.length + place + 0.1, width: 0.8, y: HEIGHT - height, height })] : [];
    }));
  }
}

// A small line of the last minutes.

import { drawing } from "./dom.js";

const WIDTH = 96;
const HEIGHT = 22;

/** The values as a line; the newest is on the right. */
export function sparkline(values, label) {
  if (values.length < 2) values = [values[0] ?? 0, values[0] ?? 0];
  const highest = Math.max(...values, 1);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = values.map((value, place) => `${(place * step).toFixed(1)},${(HEIGHT - 2 - (value / highest) * (HEIGHT - 4)).toFixed(1)}`);
  return drawing("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
    drawing("polyline", { points: points.join(" ") }));
}

// Drawing on the map: a polygon corner by corner, a single place, or several points.

import { announce } from "./dom.js";
import { rounded } from "./geometry.js";

const HINTS = {
  polygon: "Click to add corners. Double-click, Enter or a click on the first corner closes the area. Esc gives up.",
  point: "Click the place you want. Esc gives up.",
  points: "Click to add points. Enter or double-click ends, Esc gives up.",
};
const NEAR = 9; // pixels

/** Takes over the clicks on a map until the shape is done; `onDone` gets its pairs, or null if it was given up. */
export class Pen {
  constructor(map, kind, onDone) {
    this.map = map;
    this.kind = kind;
    this.pairs = [];
    this.#onDone = onDone;
    map.pen?.cancel();
    map.pen = this;
    map.node.classList.add("drawing");
    map.hint.textContent = HINTS[kind];
    map.hint.hidden = false;
    map.canvas.focus({ preventScroll: true });
    announce(HINTS[kind]);
  }

  #onDone;
  #cursor = null;

  /** A click at a point of the canvas. */
  click(x, y) {
    const pair = this.map.pairAt(x, y);
    if (pair === null) return;
    if (this.kind === "polygon" && this.pairs.length > 2) {
      const [firstX, firstY] = this.map.pointOf(this.pairs[0]);
      if (Math.hypot(firstX - x, firstY - y) < NEAR) return this.finish();
    }
    const added = rounded(pair);
    const previous = this.pairs[this.pairs.length - 1];
    if (!previous || previous[0] !== added[0] || previous[1] !== added[1]) this.pairs.push(added);
    if (this.kind === "point") return this.finish();
    this.map.redraw();
  }

  /** The pointer moves. */
  move(x, y) {
    this.#cursor = [x, y];
    if (this.pairs.length) this.map.redraw();
  }

  /** The shape is complete, if there is enough of it. */
  finish() {
    if (this.pairs.length < { polygon: 3, point: 1, points: 1 }[this.kind]) return;
    this.#end(this.pairs);
  }

  /** Forget what was drawn. */
  cancel() {
    this.#end(null);
  }

  /** Draw what there is so far. */
  draw(brush, colours) {
    const points = this.pairs.map((pair) => this.map.pointOf(pair));
    brush.strokeStyle = brush.fillStyle = colours.area;
    brush.lineWidth = 2;
    if (this.kind === "polygon" && points.length) {
      brush.beginPath();
      points.forEach(([x, y], place) => (place ? brush.lineTo(x, y) : brush.moveTo(x, y)));
      if (this.#cursor) brush.lineTo(...this.#cursor);
      brush.stroke();
    }
    for (const [x, y] of points) {
      brush.beginPath();
      brush.arc(x, y, 4, 0, 2 * Math.PI);
      brush.fill();
    }
  }

  #end(pairs) {
    if (this.map.pen !== this) return;
    this.map.pen = null;
    this.map.node.classList.remove("drawing");
    this.map.hint.hidden = true;
    this.map.redraw();
    this.#onDone(pairs);
  }
}

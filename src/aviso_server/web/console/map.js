// The world map: land, a grid, the area that is asked for, and the shapes of events.

import { element } from "./dom.js";
import { pointsShape, ringShape } from "./geometry.js";
import { feature, geoEqualEarth, geoGraticule10, geoPath } from "../vendor/geo.js";

const OUTLINES = new URL("../vendor/land-110m.json", import.meta.url);
const CLOSEST = 40;
const WORLD = [12, 8]; // the middle of the whole world
const FILLED = 0.82; // of the canvas, by what the map is fitted to
const FRESH = 2500; // milliseconds for which an event that has just come stands out

let land = null;

/** The outlines of the land, loaded once for all maps. */
function outlines() {
  land ??= fetch(OUTLINES).then((answer) => answer.json()).then((world) => feature(world, world.objects.land));
  return land;
}

/**
 * A map on two canvases: one for the land, which is drawn when the view changes, one for what comes and goes.
 *
 * `onPick` hears of clicks on events. While `pen` is set (see drawing.js), clicks belong to it.
 */
export class WorldMap {
  constructor(label) {
    this.ground = element("canvas", { "aria-hidden": "true" });
    this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-label": label, "aria-roledescription": "map" });
    this.hint = element("p", { class: "map-hint", hidden: true });
    const zoom = element("div", { class: "map-zoom" },
      element("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.zoomBy(1.6) }, "+"),
      element("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.zoomBy(1 / 1.6) }, "−"),
      element("button", { type: "button", "aria-label": "Fit to what came", title: "Fit to what came", onclick: () => this.fit() }, "◉"),
      element("button", { type: "button", "aria-label": "Whole world", onclick: () => this.showWorld() }, "◯"));
    this.legend = element("div", { class: "map-legend", hidden: true });
    this.node = element("div", { class: "map" }, this.ground, this.canvas, this.hint, this.legend, zoom);
    this.pen = null;
    this.onPick = null;
    this.#projection = geoEqualEarth().precision(0.4);
    this.#listen();
    new ResizeObserver(() => this.#resize()).observe(this.node);
    const repaint = () => this.#viewChanged();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    document.addEventListener("theme-changed", repaint);
    outlines().then((found) => {
      this.#land = found;
      this.#viewChanged();
    });
  }

  #projection;
  #land = null;
  #width = 0;
  #height = 0;
  #scale = 1;
  #centre = WORLD; // latitude and longitude in the middle
  #events = [];
  #area = null;
  #cells = [];
  #highest = 1;
  #picked = null;
  #colours = null;
  #groundDue = false;
  #due = false;

  #moved = false; // by hand: nothing else moves it then
  #box = null; // what the view has to hold: south, west, north, east; null where somebody has chosen the view

  /**
   * Move so that all events and cells are to be seen.
   *
   * `gently`: not if somebody has moved the map, nor if all of them are to be seen already.
   */
  fit(gently = false) {
    if (gently && this.#moved) return;
    const box = boxAround(this.#events, this.#cells);
    if (!box) return gently || this.showWorld();
    if (gently && this.#box && isWithin(box, this.#box)) return;
    [this.#moved, this.#box] = [false, box];
    this.#viewChanged();
  }

  /** Forget what the map was fitted to: something else is going to come. */
  unfit() {
    this.#box = null;
  }

  /** Show these events, oldest first: objects with `shape`, `id`, `arrived` and perhaps a `tint`. */
  showEvents(events) {
    this.#events = events;
    this.redraw();
  }

  /** Show what is asked for: pairs of a ring, one pair of a place, several of points; null for nothing. */
  showArea(kind, pairs) {
    this.#area = pairs === null || !pairs.length ? null : { kind, pairs };
    this.redraw();
  }

  /** Show cells of one degree: their south-western corners and how many notifications touch them. */
  showCells(cells, highest) {
    [this.#cells, this.#highest] = [cells, highest];
    this.redraw();
  }

  /** Make one event stand out. */
  pick(id) {
    this.#picked = id;
    this.redraw();
  }

  /** Move so that a pair is in the middle. */
  centreOn([latitude, longitude], scale = Math.max(this.#scale, 2.5)) {
    [this.#moved, this.#box] = [true, null];
    this.#centre = [latitude, longitude];
    this.#scale = scale;
    this.#viewChanged();
  }

  /** Go back to the whole world. */
  showWorld() {
    [this.#moved, this.#box] = [true, null];
    this.#centre = WORLD;
    this.#scale = 1;
    this.#viewChanged();
  }

  /** Come closer, or go away with a factor below 1. */
  zoomBy(factor) {
    [this.#moved, this.#box] = [true, null];
    this.#scale = Math.max(1, Math.min(CLOSEST, this.#scale * factor));
    this.#viewChanged();
  }

  /** The [latitude, longitude] at a point of the canvas, null beside the world. */
  pairAt(x, y) {
    const found = this.#projection.invert([x, y]);
    if (!found || Math.abs(found[1]) > 90 || Math.abs(found[0]) > 180) return null;
    return [found[1], found[0]];
  }

  /** Where a pair is on the canvas. */
  pointOf([latitude, longitude]) {
    return this.#projection([longitude, latitude]);
  }

  /** Draw again with the next frame. */
  redraw() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => this.#draw());
  }

  #viewChanged() {
    this.#groundDue = true;
    this.redraw();
  }

  #resize() {
    const { width, height } = this.node.getBoundingClientRect();
    if (!width || (width === this.#width && height === this.#height)) return;
    [this.#width, this.#height] = [width, height];
    const dense = Math.min(devicePixelRatio || 1, 2);
    for (const canvas of [this.ground, this.canvas]) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      canvas.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
    }
    this.#viewChanged();
  }

  #draw() {
    this.#due = false;
    if (!this.#width) return;
    if (this.#groundDue) {
      this.#groundDue = false;
      this.#colours = coloursOf(this.node);
      this.#project();
      this.#drawGround(this.#colours);
    }
    this.#drawEvents(this.#colours);
  }

  #project() {
    if (this.#box) this.#holdBox();
    const [latitude, longitude] = this.#centre;
    this.#turn(longitude, this.#scale);
    const [x, y] = this.pointOf([latitude, longitude]);
    const [north, south] = [90, -90].map((edge) => this.pointOf([edge, longitude])[1]);
    const room = [this.#height - south, -north]; // no empty space above the north pole and below the south pole
    const down = room[0] > room[1] ? (room[0] + room[1]) / 2 : Math.max(room[0], Math.min(room[1], this.#height / 2 - y));
    this.#projection.translate([this.#width / 2 - x, down]);
  }

  /** Choose centre and scale so that the box just fits, with a margin around it. */
  #holdBox() {
    const [south, west, north, east] = this.#box;
    const longitude = (west + east) / 2;
    this.#turn(longitude, 1);
    const middle = Math.max(south, Math.min(north, 0)); // the widest part
    const [left, right] = [west, east].map((edge) => this.pointOf([middle, edge])[0]);
    const [top, bottom] = [north, south].map((edge) => this.pointOf([edge, longitude])[1]);
    const scale = Math.min(this.#width / (right - left), this.#height / (bottom - top)) * FILLED;
    this.#scale = Math.max(1, Math.min(CLOSEST / 3, scale));
    this.#centre = this.#scale === 1 ? WORLD : [this.#projection.invert([0, (top + bottom) / 2])[1], longitude];
  }

  /** Turn the world to a longitude, large enough for the canvas times `scale`, with its middle at the origin. */
  #turn(longitude, scale) {
    this.#projection.rotate([-longitude, 0]).fitSize([this.#width, this.#height], { type: "Sphere" });
    this.#projection.scale(this.#projection.scale() * scale * 1.06).translate([0, 0]);
  }

  #drawGround(colours) {
    const brush = this.ground.getContext("2d");
    const path = geoPath(this.#projection, brush);
    brush.clearRect(0, 0, this.#width, this.#height);
    paint(brush, () => path({ type: "Sphere" }), { fill: colours.sea });
    paint(brush, () => path(geoGraticule10()), { stroke: colours.grid, width: 0.6 });
    if (this.#land) paint(brush, () => path(this.#land), { fill: colours.land, stroke: colours.coast, width: 0.6 });
  }

  #drawEvents(colours) {
    const brush = this.canvas.getContext("2d");
    const path = geoPath(this.#projection, brush).pointRadius(2.6);
    brush.clearRect(0, 0, this.#width, this.#height);
    this.#drawCells(brush, colours);
    if (this.#area) this.#drawArea(brush, path, colours);
    const now = performance.now();
    let moving = false;
    for (const each of this.#events) {
      const fresh = now - each.arrived < FRESH;
      moving ||= fresh;
      const picked = each.id === this.#picked;
      const colour = picked ? colours.picked : each.tint ?? colours.event;
      brush.globalAlpha = picked ? 1 : fresh ? 0.95 : 0.55;
      const filled = each.shape.type === "MultiPoint";
      paint(brush, () => path(each.shape), filled ? { fill: colour } : { stroke: colour, width: picked ? 2.6 : fresh ? 1.8 : 1.1 });
      if (!filled) {
        brush.globalAlpha = picked ? 0.35 : fresh ? 0.24 : 0.08;
        paint(brush, () => path(each.shape), { fill: colour });
        brush.globalAlpha = picked || fresh ? 1 : 0.7;
        this.#mark(brush, path, each.shape, colour);
      }
      brush.globalAlpha = 1;
    }
    this.pen?.draw(brush, colours);
    if (moving) setTimeout(() => this.redraw(), 400);
  }

  /** By powers, so that few are seen beside many. A cell behind the edge of the map would be torn apart. */
  #drawCells(brush, colours) {
    brush.fillStyle = colours.event;
    for (const [south, west, count] of this.#cells) {
      const corners = [[south, west], [south, west + 1], [south + 1, west + 1], [south + 1, west]].map((pair) => this.pointOf(pair));
      if (Math.abs(corners[1][0] - corners[0][0]) > this.#width / 2) continue;
      brush.globalAlpha = 0.2 + (0.75 * Math.log1p(count)) / Math.log1p(this.#highest);
      brush.beginPath();
      for (const [x, y] of corners) brush.lineTo(x, y);
      brush.fill();
    }
    brush.globalAlpha = 1;
  }

  /** Areas of a few kilometres vanish on a map of the world: a dot says where they are. */
  #mark(brush, path, shape, colour) {
    const [[left, top], [right, bottom]] = path.bounds(shape);
    if (right - left > 7 || bottom - top > 7) return;
    paint(brush, () => brush.arc((left + right) / 2, (top + bottom) / 2, 3.2, 0, 2 * Math.PI), { fill: colour });
  }

  #drawArea(brush, path, colours) {
    const { kind, pairs } = this.#area;
    if (kind === "polygon" && pairs.length > 2) {
      const shape = ringShape(pairs);
      brush.setLineDash([6, 4]);
      paint(brush, () => path(shape), { fill: colours.areaFill, stroke: colours.area, width: 1.8 });
      brush.setLineDash([]);
      this.#mark(brush, path, shape, colours.area);
      return;
    }
    const dots = geoPath(this.#projection, brush).pointRadius(kind === "points" ? 3.5 : 5);
    paint(brush, () => dots(pointsShape(pairs)), { fill: colours.area });
  }

  #listen() {
    let held = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, y: event.offsetY, centre: this.#centre, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.pen?.move(event.offsetX, event.offsetY);
      if (!held) return;
      const [x, y] = [event.offsetX - held.x, event.offsetY - held.y];
      held.moved ||= Math.hypot(x, y) > 4;
      if (held.moved) this.#pan(held.centre, x, y);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.#click(event.offsetX, event.offsetY);
      held = null;
    });
    this.canvas.addEventListener("pointercancel", () => { held = null; });
    this.canvas.addEventListener("dblclick", () => this.pen?.finish());
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #pan([latitude, longitude], x, y) {
    [this.#moved, this.#box] = [true, null];
    const degrees = 180 / (Math.PI * this.#projection.scale());
    const east = ((((longitude - x * degrees) % 360) + 540) % 360) - 180;
    this.#centre = [Math.max(-80, Math.min(80, latitude + y * degrees)), east];
    this.#viewChanged();
  }

  #click(x, y) {
    if (this.pen) return this.pen.click(x, y);
    if (!this.onPick) return;
    const brush = this.canvas.getContext("2d");
    const dense = this.canvas.width / this.#width;
    const near = (shape) => {
      const path = new Path2D(geoPath(this.#projection).pointRadius(5)(shape) ?? "");
      const [[left, top], [right, bottom]] = geoPath(this.#projection).bounds(shape);
      return brush.isPointInPath(path, x * dense, y * dense)
        || Math.hypot((left + right) / 2 - x, (top + bottom) / 2 - y) < 8;
    };
    const found = this.#events.findLast((each) => near(each.shape));
    if (found) this.onPick(found.id);
  }

  #key(event) {
    const step = 40;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.key in moves) this.#pan(this.#centre, ...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.3);
    else if (event.key === "-") this.zoomBy(1 / 1.3);
    else if (event.key === "0") this.showWorld();
    else if (event.key === "Enter" && this.pen) this.pen.finish();
    else if (event.key === "Escape" && this.pen) this.pen.cancel();
    else return;
    event.preventDefault();
  }
}

/** South, west, north and east of events and cells; null if there are none. */
function boxAround(events, cells) {
  const boxes = [...events.map(boxOf), ...cells.map(([south, west]) => [south, west, south + 1, west + 1])];
  if (!boxes.length) return null;
  return boxes.reduce((one, other) => [
    Math.min(one[0], other[0]), Math.min(one[1], other[1]), Math.max(one[2], other[2]), Math.max(one[3], other[3])]);
}

/** The box around an event, looked for once. */
function boxOf(event) {
  if (event.box) return event.box;
  const { type, coordinates } = event.shape;
  const box = [90, 180, -90, -180];
  for (const [x, y] of type === "Polygon" ? coordinates[0] : coordinates) {
    [box[0], box[1], box[2], box[3]] = [Math.min(box[0], y), Math.min(box[1], x), Math.max(box[2], y), Math.max(box[3], x)];
  }
  return event.box = box;
}

function isWithin(inner, outer) {
  return inner[0] >= outer[0] && inner[1] >= outer[1] && inner[2] <= outer[2] && inner[3] <= outer[3];
}

function paint(brush, trace, { fill, stroke, width = 1 }) {
  brush.beginPath();
  trace();
  if (fill) {
    brush.fillStyle = fill;
    brush.fill();
  }
  if (stroke) {
    brush.strokeStyle = stroke;
    brush.lineWidth = width;
    brush.stroke();
  }
}

/** The colours of the style sheet as the canvas wants them: resolved for the theme. */
function coloursOf(node) {
  const probe = element("i", { hidden: true });
  node.append(probe);
  const names = { sea: "sea", land: "land", coast: "coast", grid: "grid", event: "event", picked: "picked", area: "area", areaFill: "area-fill" };
  const found = Object.entries(names).map(([name, variable]) => {
    probe.style.color = `var(--map-${variable})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found);
}

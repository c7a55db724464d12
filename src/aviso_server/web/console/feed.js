// The events that came: a bounded list of cards and the shapes on the map, drawn together a few times per second.

import { card } from "./card.js";
import { element, newId } from "./dom.js";
import { cellsOf, shapeOf } from "./geometry.js";
import { Legend } from "./legend.js";
import { count, perSecond, several } from "./numbers.js";

const CARDS = 60;
const FEW = 20; // cards while more come than anybody can read
const MANY = 100; // events per second that are too many to read
const SHAPES = 400;
const CALM = 120; // milliseconds between two drawings
const BUSY = 300; // the same while hundreds of events come per second
const WINDOW = 5; // seconds over which the rate is taken
const MINUTE = 60;

/** Keeps the newest `kept` events; the page stays as quick with a thousand per second as with one. */
export class Feed {
  constructor(map, { kept, empty, live }) {
    this.map = map;
    this.received = 0;
    this.why = null; // asks why a notification came, given its id
    this.onSecond = null; // hears once per second how many came in each of the last sixty
    this.#kept = kept;
    this.#empty = empty;
    this.#live = live;
    this.#list = element("div", { class: "cards", role: "feed", "aria-label": "Notifications, newest first", "aria-busy": "false" });
    const id = newId("search");
    this.search = element("input", {
      id, type: "search", placeholder: "Search notifications", "aria-label": "Search notifications", class: "search", oninput: () => this.redraw(),
    });
    this.pauseButton = element("button", { type: "button", class: "button small", "aria-pressed": "false", hidden: !live, onclick: () => this.#pause() }, "Pause");
    const clear = element("button", { type: "button", class: "button quiet small", onclick: () => this.clear() }, "Clear");
    this.#counts = element("p", { class: "counts" });
    this.node = element("section", { class: "feed panel", "aria-label": "Notifications" },
      element("div", { class: "toolbar" }, this.search, this.pauseButton, clear), this.#counts, this.#list);
    map.onPick = (event) => this.#pick(event);
    this.#legend = new Legend(map, () => this.redraw());
    this.#show();
    setInterval(() => this.#tick(), 1000);
  }

  #kept;
  #live;
  #empty;
  #list;
  #counts;
  #legend;
  #fitted = false;
  #growing = false;
  #events = [];
  #frozen = null; // what is shown while paused
  #span = null;
  #due = false;
  #drawn = 0;
  #seconds = [];
  #sinceTick = 0;

  /** The events that are kept, oldest first. */
  get events() {
    return this.#events;
  }

  /** How many came per second lately. */
  get rate() {
    const lately = this.#seconds.slice(-WINDOW);
    return lately.length ? lately.reduce((sum, each) => sum + each, 0) / lately.length : 0;
  }

  /** Take in new events. */
  add(events) {
    const now = performance.now();
    for (const event of events) {
      event.arrived = now;
      this.#events.push(event);
    }
    this.received += events.length;
    this.#sinceTick += events.length;
    if (this.#events.length > 2 * this.#kept) this.#events = this.#events.slice(-this.#kept);
    this.redraw();
  }

  /** Say this as long as nothing has come. */
  waitFor(words) {
    this.#empty = words;
    this.redraw();
  }

  /** Forget everything. */
  clear() {
    this.#events = [];
    this.#fitted = false;
    this.map.unfit();
    this.#frozen = this.#frozen && [];
    this.received = 0;
    this.#list.replaceChildren(); // cards of another question would give the wrong reasons
    this.redraw();
  }

  /** Show only what was stored between two times in milliseconds; null shows all. */
  between(span) {
    this.#span = span;
    this.redraw();
  }

  /** Draw soon; many calls make one drawing. */
  redraw() {
    if (this.#due) return;
    this.#due = true;
    const pace = this.#busy ? BUSY : CALM;
    const wait = Math.max(0, this.#drawn + pace - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.#show()), wait);
  }

  #show() {
    this.#due = false;
    this.#drawn = performance.now();
    const shown = this.#shown();
    const shapes = [];
    for (const event of shown) {
      event.shape ??= shapeOf(event.data.identifier) ?? false;
      if (event.shape) shapes.push(event);
    }
    this.#showShapes(shapes);
    this.#say(shown.length);
    requestAnimationFrame(() => this.#showCards(shown)); // a frame of their own: map and cards together would take too long for one
  }

  /** Whether more come than anybody can read. */
  get #busy() {
    return this.#live && (this.rate > MANY || this.#sinceTick > MANY);
  }

  /** A few hundred by themselves, more of them as how many there are in each cell. */
  #showShapes(newestFirst) {
    const dense = newestFirst.length > SHAPES;
    const [cells, highest] = dense ? cellsOf(newestFirst) : [[], 1];
    if (dense) this.#legend.density(highest);
    else this.#legend.colour(newestFirst);
    this.map.showCells(cells, highest);
    this.map.showEvents(dense ? [] : newestFirst.reverse());
    if (this.#fitted || !newestFirst.length) return;
    this.#fitted = !this.#live && !this.#growing; // what comes may be elsewhere: look again until it is all there
    this.map.fit(true);
  }

  /** Say whether more of the past is coming: the map follows it until then. */
  growing(more) {
    this.#growing = more;
    this.redraw();
  }

  /** What passes search and time, newest first. */
  #shown() {
    const words = this.search.value.trim().toLowerCase();
    const source = this.#frozen ?? this.#events;
    const from = Math.max(0, source.length - this.#kept);
    const shown = [];
    for (let place = source.length - 1; place >= from; place -= 1) {
      const event = source[place];
      if (words && !(event.words ??= textOf(event)).includes(words)) continue;
      if (this.#span && !within(event, this.#span)) continue;
      shown.push(event);
    }
    return shown;
  }

  #showCards(shown) {
    const events = shown.slice(0, this.#cards());
    this.#list.classList.toggle("busy", this.#busy);
    const known = new Map([...this.#list.children].map((node) => [node.dataset.id, node]));
    const nodes = events.map((event) => known.get(event.id) ?? card(event, (picked, middle) => this.#pick(picked.id, middle), this.why));
    if (!nodes.length) return this.#list.replaceChildren(this.#nothing());
    const wanted = new Set(nodes);
    for (const node of [...this.#list.childNodes]) if (!wanted.has(node)) node.remove();
    nodes.forEach((node, place) => {
      if (this.#list.children[place] !== node) this.#list.insertBefore(node, this.#list.children[place] ?? null);
    });
  }

  #cards() {
    return this.#busy ? FEW : CARDS;
  }

  #nothing() {
    return element("p", { class: "empty" }, this.#whyNothing());
  }

  #whyNothing() {
    if (!this.#events.length) return this.#empty;
    if (this.#cut()) return `The page keeps only the newest ${count(this.#kept)} notifications, and these are older. Choose Replay only this to load them.`;
    return this.search.value.trim() ? "No notification matches your search." : "No notification in this time.";
  }

  /** Whether the chosen time reaches back to events that the page has dropped. */
  #cut() {
    if (!this.#span || this.received <= this.#kept) return false;
    return this.#span[0] < millisecondsOf(this.#events[this.#events.length - this.#kept]);
  }

  #say(matching) {
    const paused = this.#frozen ? this.#events.length - this.#frozen.length : 0;
    const narrowed = this.search.value.trim() || this.#span ? `${count(matching)} match` : "";
    const older = this.#cut() ? "older ones are not on the page" : "";
    const cut = this.received > this.#cards() ? `the newest ${this.#cards()} as cards` : "";
    const rate = this.#live ? perSecond(this.rate) : "";
    const parts = [several(this.received, "notification"), rate, narrowed, older, cut, paused > 0 ? `${count(paused)} new since the pause` : ""];
    this.#counts.textContent = parts.filter(Boolean).join(" · ");
  }

  #tick() {
    this.#seconds = [...this.#seconds, this.#sinceTick].slice(-MINUTE);
    this.onSecond?.(this.#seconds);
    const moving = this.#sinceTick || this.rate;
    this.#sinceTick = 0;
    if (moving) this.redraw();
  }

  #pause() {
    this.#frozen = this.#frozen ? null : this.#events.slice();
    this.pauseButton.textContent = this.#frozen ? "Resume" : "Pause";
    this.pauseButton.setAttribute("aria-pressed", String(Boolean(this.#frozen)));
    this.redraw();
  }

  #pick(id, middle = null) {
    this.map.pick(id);
    if (middle) this.map.centreOn(middle);
    for (const node of this.#list.children) node.classList.toggle("picked", node.dataset.id === id);
    if (!middle) this.#list.querySelector(".picked")?.scrollIntoView({ block: "nearest" });
  }
}

function textOf(event) {
  return `${event.id} ${event.time} ${JSON.stringify(event.data)}`.toLowerCase();
}

function within(event, [from, to]) {
  const time = millisecondsOf(event);
  return time >= from && time <= to;
}

function millisecondsOf(event) {
  return event.milliseconds ??= Date.parse(event.time);
}

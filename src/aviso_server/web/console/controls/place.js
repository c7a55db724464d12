// Places on the map: text for those who know the numbers, and drawing for everybody else.

import { button, element } from "../dom.js";
import { Pen } from "../drawing.js";
import { parsePairs, placeText, ringText } from "../geometry.js";

const EXAMPLES = {
  polygon: "(50,5,50,15,56,15,56,5,50,5)",
  point: "52.55,13.5",
  points: "54.2,7.5,55.0,6.3",
};
const DRAW = { polygon: "Draw the area", point: "Pick the place", points: "Set points" };

/** An area that a publisher sends, or the points of a cloud. */
export function publishedPlace(kind, map, id) {
  const place = new Place(kind, map, id);
  place.write(EXAMPLES[kind]);
  return {
    node: place.node,
    read: () => {
      const text = place.input.value.trim();
      if (!text) return undefined;
      return kind === "points" ? parsePairs(text) ?? text : text;
    },
    write: (value) => place.write(Array.isArray(value) ? value.flat().join(",") : value ?? ""),
  };
}

/** What readers ask for: anywhere, an area, or what covers a place. */
export function wantedPlace(map, id, kinds, needed) {
  const names = { any: "Anywhere", polygon: "In an area", point: "At a place" };
  const offered = needed ? kinds : ["any", ...kinds];
  const places = Object.fromEntries(kinds.map((kind) => [kind, new Place(kind, map, `${id}-${kind}`)]));
  const inputs = offered.map((kind, index) =>
    element("input", { type: "radio", name: id, value: kind, id: index ? null : id, checked: index === 0 }));
  const chosen = () => inputs.find((input) => input.checked).value;
  const show = () => {
    for (const kind of kinds) places[kind].node.hidden = kind !== chosen();
    map.pen?.cancel();
    if (chosen() === "any") map.showArea("polygon", null);
    else places[chosen()].showOnMap();
  };
  const chips = inputs.map((input) => element("label", { class: "chip" }, input, element("span", {}, names[input.value])));
  const node = element("div", { class: "area", onchange: (event) => event.target.type === "radio" && show() },
    element("div", { class: "chips", role: "radiogroup" }, chips), Object.values(places).map((place) => place.node));
  if (needed) places.polygon.write("(35,-12,35,40,71,40,71,-12,35,-12)");
  show();
  return {
    node,
    grouped: true,
    read: () => {
      const kind = chosen();
      const text = kind === "any" ? "" : places[kind].input.value.trim();
      return text ? { [kind]: text } : {};
    },
    showOnMap: show,
  };
}

class Place {
  constructor(kind, map, id) {
    this.kind = kind;
    this.map = map;
    this.input = element("input", {
      id, type: "text", placeholder: EXAMPLES[kind], autocomplete: "off", spellcheck: "false",
      "aria-label": { polygon: "Corners as latitude,longitude,…", point: "Place as latitude,longitude", points: "Points as latitude,longitude,…" }[kind],
      oninput: () => this.showOnMap(),
    });
    const clear = button("Clear", () => { this.write(""); this.#changed(); }, { class: "button quiet small" });
    this.node = element("div", { class: "place" }, this.input,
      element("div", { class: "row" }, button(DRAW[kind], () => this.#draw(), { class: "button small" }), clear));
  }

  /** Take over a text. */
  write(text) {
    this.input.value = text;
    this.showOnMap();
  }

  /** Draw what the text says. */
  showOnMap() {
    this.map.showArea(this.kind, parsePairs(this.input.value));
  }

  #draw() {
    this.map.node.scrollIntoView({ block: "nearest" });
    new Pen(this.map, this.kind, (pairs) => {
      if (pairs === null) return;
      const text = { polygon: ringText, point: (given) => placeText(given[0]), points: (given) => given.flat().join(",") };
      this.write(text[this.kind](pairs));
      this.#changed();
    });
  }

  #changed() {
    this.input.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

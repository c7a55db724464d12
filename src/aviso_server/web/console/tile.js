// A number that is seen from afar.

import { element } from "./dom.js";

/** A value with a name and a few words about it; `kind` is "good", "bad" or "busy". */
export function tile(title, value, words, kind = "") {
  return element("div", { class: "tile", "data-kind": kind }, element("span", { class: "title" }, title), element("strong", {}, value), element("span", { class: "soft" }, words));
}

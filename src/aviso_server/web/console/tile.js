// A number that is seen from afar.

import { element } from "./dom.js";

/** A value with a name and a few words about it; `kind` is "good", "bad" or "busy". */
export function tile(title, value, words, kind = "") {
  const long = String(value).length > 12; // a date and a time do not fit in large letters
  return element("div", { class: "tile", "data-kind": kind },
    element("span", { class: "title" }, title), element("strong", { class: long ? "moment" : "" }, value), element("span", { class: "soft" }, words));
}

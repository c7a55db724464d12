// Tables: the first cell of a row names it, and on a narrow screen every cell says what it is.

import { element } from "./dom.js";

/** A table, or words where it would be empty. */
export function table(label, heads, rows, empty) {
  if (!rows.length) return element("p", { class: "empty" }, empty);
  return element("table", { "aria-label": label },
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell, place) => (place
      ? element("td", { "data-head": heads[place] }, cell) : element("th", { scope: "row" }, cell)))))));
}

// Days, with the browser's own picker, and times of day as forecasters write them.

import { element } from "../dom.js";
import { today } from "../numbers.js";

/** A day; the server writes it in the form of the field. */
export function dateControl(name, field, mode, id) {
  const input = element("input", { id, type: "date", max: "9999-12-31" });
  if (mode === "publish" || field.required) input.value = today();
  return {
    node: input,
    read: () => input.value || undefined,
    write: (value) => {
      const digits = String(value ?? "").replaceAll("-", "");
      input.value = digits.length === 8 ? `${digits.slice(0, 4)}-${digits.slice(4, 6)}-${digits.slice(6)}` : "";
    },
  };
}

const RUNS = ["0000", "0600", "1200", "1800"];

/** A time of day to the minute, with the usual runs to choose from; not the browser's picker, which may want AM or PM. */
export function timeControl(name, field, mode, id) {
  const input = element("input", { id, type: "text", inputmode: "numeric", placeholder: mode === "filter" ? "any, or HHMM" : "HHMM", autocomplete: "off", list: `${id}-runs` });
  if (mode === "publish" || field.required) input.value = "1200";
  return {
    node: element("div", { class: "short" }, input, element("datalist", { id: `${id}-runs` }, RUNS.map((value) => element("option", { value })))),
    read: () => input.value.trim() || undefined,
    write: (value) => { input.value = value ?? ""; },
  };
}

// Text: free, or a version with its default.

import { element } from "../dom.js";

/** A line of text; readers may leave it empty for any value. */
export function textControl(name, field, mode, id) {
  const placeholder = mode === "filter" ? "any" : field.default ?? "";
  const input = element("input", {
    id, type: "text", placeholder, autocomplete: "off", spellcheck: "false", maxlength: field.max_length,
  });
  if (mode === "publish") input.value = field.default ?? name.slice(0, field.max_length ?? 32);
  return {
    node: input,
    read: () => (input.value.trim() === "" ? undefined : input.value.trim()),
    write: (value) => { input.value = typeof value === "string" ? value : ""; },
  };
}

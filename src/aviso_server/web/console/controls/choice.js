// A choice between a few values: a chip for each.

import { element } from "../dom.js";

/** Publishers choose one value; readers any number of them, none meaning any. */
export function choiceControl(name, field, mode, id) {
  const kind = mode === "publish" ? "radio" : "checkbox";
  const inputs = field.values.map((value, place) => element("input", { type: kind, name: id, value, id: place ? null : id }));
  if (mode === "publish" && inputs.length) inputs[0].checked = true;
  const chips = inputs.map((input) => element("label", { class: "chip" }, input, element("span", {}, input.value)));
  const chosen = () => inputs.filter((input) => input.checked).map((input) => input.value);
  return {
    node: element("div", { class: "chips", role: mode === "publish" ? "radiogroup" : "group" }, chips),
    grouped: true,
    read: () => {
      const values = chosen();
      if (!values.length) return undefined;
      return values.length === 1 ? values[0] : { in: values };
    },
    write: (value) => {
      const values = typeof value === "object" && value ? value.in ?? [value.eq] : [value];
      for (const input of inputs) input.checked = values.includes(input.value);
    },
  };
}

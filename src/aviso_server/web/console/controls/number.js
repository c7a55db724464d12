// Numbers: one to publish; to read by, an operator and as many as it needs, with sliders where the range is known.

import { element } from "../dom.js";
import { OPERATORS, WORDS } from "./operators.js";

/** A number, or a comparison with one or two. */
export function numberControl(name, field, mode, id) {
  return mode === "publish" ? exact(field, id) : comparison(name, field, id);
}

function exact(field, id) {
  const value = amount(field, id, field.range ? middle(field) : 1);
  return { node: value.node, read: value.read, write: value.write };
}

function middle({ type, range: [low, high] }) {
  return type === "IntHandler" ? Math.floor((low + high) / 2) : (low + high) / 2;
}

function comparison(name, field, id) {
  const operator = element("select", { id, "aria-label": `${name}: comparison` },
    ["any", ...OPERATORS[field.type]].map((each) => element("option", { value: each }, WORDS[each])));
  const low = amount(field, null, field.range ? field.range[0] : 0, `${name}: value`);
  const high = amount(field, null, field.range ? field.range[1] : 1, `${name}: upper value`);
  const list = element("input", { type: "text", placeholder: "1, 2, 3", "aria-label": `${name}: values` });
  const show = () => {
    low.node.hidden = operator.value === "any" || operator.value === "in";
    high.node.hidden = operator.value !== "between";
    list.hidden = operator.value !== "in";
  };
  operator.addEventListener("change", show);
  show();
  return {
    node: element("div", { class: "comparison" }, operator, low.node, high.node, list),
    read: () => {
      switch (operator.value) {
        case "any": return undefined;
        case "eq": return low.read();
        case "in": return { in: list.value.split(",").filter((part) => part.trim()).map(Number) };
        case "between": return { between: [low.read(), high.read()] };
        default: return { [operator.value]: low.read() };
      }
    },
    write: (value) => {
      const asked = value === undefined ? ["any", undefined] : Object.entries(typeof value === "object" ? value : { eq: value })[0];
      operator.value = asked[0];
      if (asked[0] === "in") list.value = asked[1].join(", ");
      else if (asked[0] === "between") [low, high].forEach((each, place) => each.write(asked[1][place]));
      else if (asked[0] !== "any") low.write(asked[1]);
      show();
    },
  };
}

/** A number that can be typed, and moved with a slider if it has limits. */
function amount(field, id, start, label = null) {
  const whole = field.type === "IntHandler";
  const step = whole ? 1 : "any";
  const limits = field.range ? { min: field.range[0], max: field.range[1] } : {};
  const box = element("input", { id, type: "number", step, ...limits, value: start, "aria-label": label });
  const read = () => (box.value.trim() === "" ? undefined : Number(box.value));
  if (!field.range) return { node: element("div", { class: "amount" }, box), read, write: (value) => { box.value = value; } };
  const fine = whole ? 1 : (limits.max - limits.min) / 200;
  const slider = element("input", { type: "range", ...limits, step: fine, value: start, "aria-label": `${label ?? "value"}, slider` });
  slider.addEventListener("input", () => {
    box.value = whole ? slider.value : Number(Number(slider.value).toFixed(3));
    box.dispatchEvent(new Event("change", { bubbles: true }));
  });
  box.addEventListener("input", () => { slider.value = box.value; });
  return {
    node: element("div", { class: "amount" }, slider, box),
    read,
    write: (value) => { box.value = slider.value = value; },
  };
}

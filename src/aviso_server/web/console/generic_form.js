// The form of an event type that nobody configured: any keys, each with a value.

import { button, element } from "./dom.js";

/** Rows of a key and a value; readers write `*` for any value. */
export class GenericForm {
  constructor(mode) {
    this.mode = mode;
    this.name = element("input", { type: "text", id: `generic-${mode}`, value: "my_event", autocomplete: "off", spellcheck: "false" });
    this.#rows = element("div", { class: "pairs" });
    this.node = element("div", { class: "fields" },
      element("div", { class: "field" }, element("label", { for: this.name.id }, "Name of the event type"), this.name),
      element("fieldset", { class: "field" }, element("legend", {}, "Keys and values"), this.#rows,
        button("Add a key", () => this.#add("", ""), { class: "button small" }),
        element("p", { class: "field-hint" }, mode === "filter" ? "The keys that were published; * means any value." : "Any keys; values must not be empty.")));
    this.#add("place", mode === "filter" ? "*" : "oslo");
  }

  #rows;

  #add(key, value) {
    const field = (label, text) => element("input", { type: "text", "aria-label": label, value: text, autocomplete: "off" });
    const row = element("div", { class: "pair" }, field("Key", key), field("Value", value),
      element("button", { type: "button", class: "button quiet small", "aria-label": "Remove this key", onclick: () => row.remove() }, "×"));
    this.#rows.append(row);
  }

  /** What is filled in, as the identifier of a request. */
  read() {
    const pairs = [...this.#rows.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value.trim()));
    return Object.fromEntries(pairs.filter(([key]) => key));
  }

  write() {}

  showOnMap() {}

  showRefusal() {
    return false;
  }

  clearRefusal() {}
}

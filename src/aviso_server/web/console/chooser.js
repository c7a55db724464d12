// Which event type, and its form: the left side of Live, History and Publish.

import { eventTypes, hasPlace, takesAnyEventType } from "./catalogue.js";
import { button, element, newId } from "./dom.js";
import { IdentifierForm } from "./form.js";
import { GenericForm } from "./generic_form.js";
import { several } from "./numbers.js";

const NARROW = "(max-width: 56rem)"; // as in the style sheets
const OTHER = "*other*";

/** A list of event types and the form of the chosen one. `onChange` hears of every change to either. */
export class Chooser {
  constructor(mode, map, onChange) {
    const id = newId("event-type");
    this.select = element("select", { id, onchange: () => this.#choose(this.select.value) });
    this.#mode = mode;
    this.#configured = new IdentifierForm(mode, map);
    this.form = this.#configured;
    this.#map = map;
    this.#about = element("p", { class: "field-hint" });
    this.#place = element("div");
    this.node = element("div", { class: "chooser", onchange: onChange, oninput: onChange },
      element("div", { class: "field" }, element("label", { for: id }, "Event type"), this.select, this.#about), this.#place,
      button("Change the filter", () => this.node.classList.remove("folded"), { class: "button small unfold" }));
    this.ready = this.#load();
    this.#onChange = onChange;
  }

  #mode;
  #configured;
  #generic = null;
  #map;
  #about;
  #place;
  #types = {};
  #onChange;

  /** The chosen event type. */
  get eventType() {
    return this.select.value === OTHER ? this.#generic.name.value.trim() : this.select.value;
  }

  /** Whether its notifications must have a payload. */
  get needsPayload() {
    return Boolean(this.#types[this.select.value]?.payload?.required);
  }

  /** What is filled in, as part of a request. */
  request() {
    return { event_type: this.eventType, identifier: this.form.read() };
  }

  /** Make room for what comes on a narrow screen, and bring it into view. */
  fold(results) {
    if (!matchMedia(NARROW).matches) return;
    this.node.classList.add("folded");
    results.scrollIntoView({ block: "start" });
  }

  /** Choose an event type, if it is there. */
  choose(name) {
    if (!(name in this.#types)) return;
    this.select.value = name;
    this.#choose(name);
  }

  async #load() {
    this.#types = await eventTypes();
    const names = Object.keys(this.#types).sort();
    this.select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    takesAnyEventType().then((taken) => {
      if (!taken) return;
      this.select.append(element("option", { value: OTHER }, "another, not configured …"));
      if (!names.length) this.#choose(OTHER);
    }).catch(() => {});
    // one with an area shows most of what the page can do
    if (names.length) this.#choose(names.find((name) => hasPlace(this.#types[name])) ?? names[0]);
    else this.#about.textContent = "No event types are configured on this server.";
  }

  #choose(name) {
    this.select.value = name;
    this.#map.showArea("polygon", null);
    if (name === OTHER) {
      this.form = this.#generic ??= new GenericForm(this.#mode);
      this.#about.textContent = "This server also accepts event types that are not configured.";
    } else {
      const schema = this.#types[name];
      this.form = this.#configured;
      this.form.show(schema);
      this.#about.textContent = `${several(Object.keys(schema.identifier).length, "field")}: ${Object.keys(schema.identifier).join(", ")}`;
    }
    this.#place.replaceChildren(this.form.node);
    this.#onChange?.();
  }
}

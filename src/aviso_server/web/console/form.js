// The form of an event type, built from its schema: to publish with, or to filter by.

import { hasArea, hasPlace, isSpatial } from "./catalogue.js";
import { choiceControl } from "./controls/choice.js";
import { dateControl, timeControl } from "./controls/moment.js";
import { numberControl } from "./controls/number.js";
import { WILDCARDS } from "./controls/operators.js";
import { publishedPlace, wantedPlace } from "./controls/place.js";
import { textControl } from "./controls/text.js";
import { element, newId } from "./dom.js";

const CONTROLS = {
  StringHandler: textControl,
  ExpverHandler: textControl,
  EnumHandler: choiceControl,
  DateHandler: dateControl,
  TimeHandler: timeControl,
  IntHandler: numberControl,
  FloatHandler: numberControl,
  PolygonHandler: (name, field, mode, id, map) => publishedPlace("polygon", map, id),
  PointCloudHandler: (name, field, mode, id, map) => publishedPlace("points", map, id),
};
/** How a field is filled in, by its type; a type that is not listed is filled in as text. */

const AREA = "area on the map";

/** A form for the identifier of one event type. `mode` is "filter" or "publish". */
export class IdentifierForm {
  constructor(mode, map) {
    this.mode = mode;
    this.map = map;
    this.node = element("div", { class: "fields" });
    this.#rows = new Map();
  }

  #rows;
  #schema = null;
  #area = null;

  /** Begin anew with the fields of an event type. */
  show(schema) {
    this.#schema = schema;
    this.#rows.clear();
    this.#area = null;
    this.map.showArea("polygon", null);
    for (const [name, field] of Object.entries(schema.identifier)) {
      if (this.mode === "filter" && isSpatial(field)) continue;
      const id = newId("field");
      const make = CONTROLS[field.type] ?? textControl;
      this.#rows.set(name, new Row(name, field, this.mode, make(name, field, this.mode, id, this.map), id));
    }
    if (this.mode === "filter" && hasArea(schema)) this.#addArea(schema);
    this.node.replaceChildren(...[...this.#rows.values()].map((row) => row.node));
  }

  #addArea(schema) {
    const id = newId("area");
    const needed = ["polygon", "point_cloud"].some((name) => schema.identifier[name]?.required);
    const described = { required: needed, description: "Only events that overlap it." };
    this.#area = wantedPlace(this.map, id, hasPlace(schema) ? ["polygon", "point"] : ["polygon"], needed);
    this.#rows.set(AREA, new Row("area", described, this.mode, this.#area, id));
  }

  /** What is filled in, as the identifier of a request. */
  read() {
    const identifier = {};
    for (const [name, row] of this.#rows) {
      if (name === AREA) Object.assign(identifier, this.#area.read());
      else {
        const value = row.control.read() ?? (this.mode === "filter" ? everything(row.field) : undefined);
        if (value !== undefined) identifier[name] = value;
      }
    }
    return identifier;
  }

  /** Fill in what a request says. */
  write(identifier) {
    for (const [name, row] of this.#rows) if (name !== AREA && name in identifier) row.control.write(identifier[name]);
  }

  /** Show the area again, after another form has used the map. */
  showOnMap() {
    this.#area?.showOnMap();
  }

  /** Put a refusal at the field it is about; false if it is about none of them. */
  showRefusal(refusal) {
    this.clearRefusal();
    for (const { field, message } of refusal.errors) this.#rowOf(field)?.complain(message);
    const row = this.#rowOf(refusal.fieldOf([...Object.keys(this.#schema.identifier), "polygon", "point"]));
    if (!row) return false;
    row.complain(refusal.message + (refusal.details ? ` ${refusal.details}` : ""));
    return true;
  }

  #rowOf(name) {
    const area = this.#area && ["polygon", "point", "point_cloud"].includes(name);
    return this.#rows.get(area ? AREA : name);
  }

  /** Forget about refusals. */
  clearRefusal() {
    for (const row of this.#rows.values()) row.complain("");
  }
}

/** What stands for any value of a field that readers have to name; undefined if they have to choose one. */
function everything(field) {
  if (!field.required) return undefined;
  if (field.values) return { in: field.values };
  if (WILDCARDS.includes(field.type)) return "*";
  if (field.range) return { between: field.range };
  return undefined;
}

class Row {
  constructor(name, field, mode, control, id) {
    this.field = field;
    this.control = control;
    this.#error = element("p", { class: "field-error", id: `${id}-error`, hidden: true });
    const hint = field.description ? element("p", { class: "field-hint", id: `${id}-hint` }, field.description) : null;
    const must = mode === "filter" && field.required && everything(field) === undefined;
    const words = [name, must ? element("span", { class: "needed" }, "required") : null];
    this.node = control.grouped
      ? element("fieldset", { class: "field" }, element("legend", {}, words), control.node, hint, this.#error)
      : element("div", { class: "field" }, element("label", { for: id }, words), control.node, hint, this.#error);
    this.#input = control.node.id === id ? control.node : control.node.querySelector(`#${id}`) ?? control.node.querySelector("input");
    if (hint) this.#input?.setAttribute("aria-describedby", hint.id);
  }

  #error;
  #input;

  complain(words) {
    this.#error.textContent = words;
    this.#error.hidden = !words;
    this.node.classList.toggle("refused", Boolean(words));
    if (!words) return this.#input?.removeAttribute("aria-invalid");
    this.#input?.setAttribute("aria-invalid", "true");
    this.#input?.setAttribute("aria-errormessage", this.#error.id);
    this.#input?.focus({ preventScroll: true });
    this.#error.scrollIntoView({ block: "nearest" });
  }
}

// Fills the guide: what can be published here, with commands ready to paste.

import { here } from "./console/api.js";
import { eventTypes } from "./console/catalogue.js";
import { button, copy, element } from "./console/dom.js";

const square = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]];

/** Today in UTC, in the form a date field is delivered in. */
function today(format) {
  const text = new Date().toISOString().slice(0, 10);
  return format === "%Y-%m-%d" ? text : text.replaceAll("-", "");
}

/** A value that the field accepts. */
function sample(name, field) {
  switch (field.type) {
    case "DateHandler": return today(field.canonical_format);
    case "TimeHandler": return "1200";
    case "EnumHandler": return field.values[0] ?? "";
    case "ExpverHandler": return field.default ?? "0001";
    case "IntHandler":
    case "FloatHandler": return String(field.range ? field.range[0] : 1);
    case "PolygonHandler": return square;
    case "PointCloudHandler": return [[52.5, 13.4], [52.5, 13.5]];
    default: return name.slice(0, field.max_length ?? 32);
  }
}

/** What a field takes, in words. */
function accepted(field) {
  switch (field.type) {
    case "StringHandler": return field.max_length == null ? "text" : `text, up to ${field.max_length} bytes`;
    case "DateHandler": return `date, delivered as ${field.canonical_format}`;
    case "TimeHandler": return "time of day, such as 1200 or 12:00";
    case "EnumHandler": return `one of ${field.values.join(", ")}`;
    case "ExpverHandler": return field.default == null ? "version" : `version, empty means ${field.default}`;
    case "IntHandler": return field.range ? `whole number from ${field.range[0]} to ${field.range[1]}` : "whole number";
    case "FloatHandler": return field.range ? `number from ${field.range[0]} to ${field.range[1]}` : "number";
    case "PolygonHandler": return "area, as [[lat,lon],...] with the first point repeated";
    case "PointCloudHandler": return "points, as [[lat,lon],...]; readers ask with a polygon";
    default: return field.type;
  }
}

/** A curl command that sends the body to the path. */
function curl(path, body, stream) {
  const json = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl ${stream ? "-N" : "-sS"} -X POST "${here}api/v1/${path}" \\\n  -H "Content-Type: application/json" \\\n  -d '${json}'`;
}

/** What a reader has to send: the required fields, and an area where points are asked for by one. */
function request(fields) {
  const asked = {};
  for (const [name, field] of Object.entries(fields)) {
    if (!field.required) continue;
    if (field.type === "PointCloudHandler") asked.polygon = square;
    else asked[name] = sample(name, field);
  }
  return asked;
}

function shell(title, command) {
  const copyButton = button("Copy", (event) => copy(command, event.currentTarget), { class: "button small" });
  return element("div", { class: "shell" }, element("div", { class: "row" }, element("h3", {}, title), copyButton),
    element("pre", { class: "code", tabindex: "0", "aria-label": title }, command));
}

function eventType(name, schema) {
  const fields = schema.identifier;
  const names = Object.keys(fields);
  const rows = names.map((field) => element("tr", {},
    element("td", {}, element("code", {}, field)),
    element("td", {}, accepted(fields[field])),
    element("td", {}, fields[field].required ? "yes" : "no"),
    element("td", {}, fields[field].description ?? "")));
  const heads = ["Field", "Takes", "Required to read", "Meaning"].map((text) => element("th", { scope: "col" }, text));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const whole = Object.fromEntries(names.map((field) => [field, sample(field, fields[field])]));
  return element("details", { class: "channel" },
    element("summary", {}, element("strong", {}, name), element("span", { class: "soft" }, names.join(", "))),
    element("div", { class: "wide" }, table),
    shell("Publish", curl("notification", { event_type: name, identifier: whole, payload: { note: "hello" } }, false)),
    shell("Watch new notifications", curl("watch", { event_type: name, identifier: request(fields) }, true)),
    shell("Replay from the beginning", curl("replay", { event_type: name, identifier: request(fields), from_id: "1" }, true)));
}

async function showEventTypes() {
  const place = document.getElementById("event-types");
  try {
    const schema = await eventTypes();
    const names = Object.keys(schema).sort();
    const found = names.map((name) => eventType(name, schema[name]));
    if (found.length === 1) found[0].open = true;
    place.replaceChildren(...(found.length ? found : [element("p", {}, "No event types are configured: the server accepts any, unless it is strict.")]));
  } catch (problem) {
    place.replaceChildren(element("p", {}, `The event types could not be loaded. ${problem.message} ${problem.advice ?? ""}`));
  }
}

showEventTypes();

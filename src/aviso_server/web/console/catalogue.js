// The event types of this server.

import { ask } from "./api.js";

let asked = null;

/** Every event type with its schema, by name; asked once. */
export function eventTypes() {
  asked ??= ask("GET", "api/v1/schema").then((answer) => answer.schema).catch((problem) => {
    asked = null;
    throw problem;
  });
  return asked;
}

let described = null;

/** Whether this server takes event types that nobody configured. */
export function takesAnyEventType() {
  described ??= ask("GET", "api-docs/openapi.json").then((document) => "WatchOfAnyEventType" in document.components.schemas);
  return described;
}

const SPATIAL = new Set(["PolygonHandler", "PointCloudHandler"]);

/** Whether readers can ask for an area: only events with an area of their own can be in one. */
export function hasArea(schema) {
  return "polygon" in schema.identifier || "point_cloud" in schema.identifier;
}

/** Whether readers can ask for a single place. */
export function hasPlace(schema) {
  return "polygon" in schema.identifier && !("point_cloud" in schema.identifier);
}

/** Whether a field belongs on the map. */
export function isSpatial(field) {
  return SPATIAL.has(field.type);
}

// The request on the page as a command or as code, to paste elsewhere.

import { here } from "./api.js";

/** Every language by its name: a function of the kind of request ("watch", "replay" or "notification") and the request. */
export const LANGUAGES = { curl, aviso, pyaviso, Spark: spark };

const base = () => here.href.replace(/\/$/, "");

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A JSON value as Python code. */
export function python(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => python(each, inner))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length < 68 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}

function curl(kind, request) {
  return [
    `curl ${kind === "notification" ? "-sS" : "-N"} -X POST ${quoted(`${base()}/api/v1/${kind}`)}`,
    `  -H 'Content-Type: application/json'`,
    `  -d ${quoted(JSON.stringify(request))}`,
  ].join(" \\\n");
}

function aviso(kind, request) {
  const address = `export AVISO_BASE_URL=${base()}`;
  if (kind === "notification") return `${address}\n${notifyCommand(request)}`;
  const parts = [
    `aviso ${kind === "watch" ? "listen" : "replay"} --event ${request.event_type}`,
    `  --identifiers ${quoted(JSON.stringify(request.identifier))}`,
  ];
  const start = startFrom(request);
  if (start !== null) parts.push(`  --from ${quoted(String(start))}`);
  const end = request.to_id ?? request.to_date;
  if (end != null) parts.push(`  --until ${quoted(end)}`);
  return `${address}\n${parts.join(" \\\n")}`;
}

function notifyCommand({ event_type: eventType, identifier, payload }) {
  const fields = Object.entries(identifier).map(([name, value]) =>
    (typeof value === "string" && !/[,"{}[\]]/.test(value) ? `${name}=${value}` : null));
  const plain = [`event=${eventType}`, ...fields.filter(Boolean)];
  if (payload !== undefined) plain.push(`data=${JSON.stringify(payload)}`);
  const others = Object.entries(identifier).filter((_, place) => fields[place] === null)
    .map(([name, value]) => (typeof value === "string" ? `${name}=${value.replace(/^\(|\)$/g, "")}` : `${name}:=${JSON.stringify(value)}`));
  return [`aviso notify ${quoted(plain.join(","))}`, ...others.map((each) => `  --identifier ${quoted(each)}`)].join(" \\\n");
}

/** The client counts what was seen already: it starts after the number it is given. */
function startFrom(request) {
  if (request.from_id != null) return Math.max(Number(request.from_id) - 1, 0);
  return request.from_date ?? null;
}

function pyaviso(kind, request) {
  const client = `import pyaviso\n\nclient = pyaviso.AvisoClient(base_url=${python(base())}, auth=pyaviso.Anonymous())`;
  if (kind === "notification") {
    const payload = request.payload === undefined ? "" : `    payload=${python(request.payload, "    ")},\n`;
    return `${client}\nclient.notify(\n    event_type=${python(request.event_type)},\n    identifier=${python(request.identifier, "    ")},\n${payload})`;
  }
  const start = startFrom(request);
  const end = request.to_id != null ? Number(request.to_id) : request.to_date;
  const options = [
    start === null ? "" : `    start_from=${python(start)},\n`,
    end == null ? "" : `    until=${python(end)},\n`,
    kind === "replay" && end == null ? `    mode="replay_only",\n` : "",
  ].join("");
  return `${client}\nwanted = ${python(request.identifier)}\nwith client.listen(\n    ${python(request.event_type)},\n    filter=wanted,\n${options}) as notifications:\n`
    + "    for notification in notifications:\n        print(notification.sequence, notification.identifier, notification.payload)";
}

function spark(kind, request) {
  const session = [
    "import json",
    "from pathlib import Path",
    "from aviso_server.spark.session import open_session",
    "",
    `spark = open_session(Path("data/spark"), "local[2]")`,
  ];
  const options = { url: base(), event_type: request.event_type };
  if (kind === "notification") {
    return [
      ...session,
      `identifier = json.dumps(${python(request.identifier)})`,
      `payload = json.dumps(${python(request.payload)})`,
      `rows = spark.createDataFrame([(identifier, payload)], "identifier string, payload string")`,
      `rows.write.format("aviso").options(${keywords(options)}).mode("append").save()`,
    ].join("\n");
  }
  for (const name of ["from_id", "from_date", "to_id", "to_date"]) if (request[name] != null) options[name] = request[name];
  const lines = [
    ...session,
    `wanted = json.dumps(${python(request.identifier)})`,
    `source = spark.${kind === "watch" ? "readStream" : "read"}.format("aviso").options(${keywords(options)})`,
    `events = source.option("identifier", wanted).load()`,
  ];
  if (kind === "replay") return [...lines, "events.show()"].join("\n");
  const query = `query = events.writeStream.format("console").option("checkpointLocation", "data/checkpoint").start()`;
  return [...lines, query, "query.awaitTermination()"].join("\n");
}

/** Options as arguments of a call, each on its own line. */
function keywords(options) {
  return `\n${Object.entries(options).map(([name, value]) => `    ${name}=${python(value)},\n`).join("")}`;
}

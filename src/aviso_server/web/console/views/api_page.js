// API: the descriptions that programs read, made readable.

import { ask } from "../api.js";
import { element } from "../dom.js";
import { Notice } from "../notice.js";

const VERBS = { publish: "Publish", watch: "Watch", replay: "Replay" };

/** The view; the stream description is fetched when it is shown for the first time. */
export function apiPage() {
  const notice = new Notice();
  const list = element("div", { class: "channels" });
  let loaded = false;

  async function load() {
    if (loaded) return;
    try {
      list.replaceChildren(...channels(await ask("GET", "api-docs/asyncapi.json")));
      loaded = true;
    } catch (problem) {
      notice.refuse(problem);
    }
  }

  const node = element("div", { class: "page" },
    element("h1", {}, "API"),
    element("p", { class: "lead" }, "Your programs can do everything this page does. Both descriptions are made from this server's event types."),
    element("ul", { class: "links" },
      link("swagger-ui/", "Requests", "Every request, to read and to try"),
      link("api-docs/openapi.json", "openapi.json", "The requests, for programs"),
      link("api-docs/asyncapi.json", "asyncapi.json", "The streams, for programs, AsyncAPI 3")),
    notice.node,
    element("section", { class: "panel" }, element("h2", {}, "Streams"),
      element("p", { class: "soft" }, "The messages of each event type, from asyncapi.json."), list));
  return { node, shown: load };
}

function link(href, title, words) {
  return element("li", {}, element("a", { href }, title, element("span", {}, words)));
}

function channels(document) {
  const entries = Object.entries(document.channels);
  if (!entries.length) return [element("p", { class: "empty" }, "No event types are configured; streams of any name have no description.")];
  return entries.map(([name, channel]) => element("details", { class: "channel" },
    element("summary", {}, element("span", { class: "badge" }, VERBS[name.split(".")[0]] ?? name), element("strong", {}, channel.title.split(" ").slice(1).join(" ")), element("code", {}, `POST ${channel.address}`)),
    Object.keys(channel.messages).map((message) => messageOf(document.components.messages[message]))));
}

function messageOf(message) {
  return element("div", { class: "message" },
    element("h3", {}, message.title, " ", element("code", {}, message.name)),
    message.summary ? element("p", { class: "soft" }, withCode(message.summary)) : null,
    schema(message.payload));
}

function schema(payload) {
  const properties = Object.entries(payload.properties ?? {});
  if (!properties.length) return element("p", { class: "soft" }, payload.description ?? "Any JSON value.");
  return element("dl", { class: "members" }, properties.map(([name, member]) => [
    element("dt", {}, element("code", {}, name), !payload.required || payload.required.includes(name) ? null : element("span", { class: "soft" }, " optional")),
    element("dd", {}, kind(member), member.description ? [" · ", withCode(member.description)] : null, member.properties ? schema(member) : null),
  ]));
}

/** Words in which code stands between backticks. */
function withCode(words) {
  return words.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

function kind(member) {
  if ("const" in member) return `always ${JSON.stringify(member.const)}`;
  if (member.enum) return `one of ${member.enum.join(", ")}`;
  if (member.anyOf) return [...new Set(member.anyOf.map(kind))].join(" or ");
  return [member.type ?? "any"].flat().join(" or ");
}

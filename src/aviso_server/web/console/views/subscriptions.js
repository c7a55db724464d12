// Subscriptions: what is kept for whom, how far behind it is, what failed, and the means to mend it.

import { ask, send } from "../api.js";
import { announce, button, element, newId } from "../dom.js";
import { Notice } from "../notice.js";
import { count } from "../numbers.js";
import { onSession } from "../session.js";
import { table } from "../table.js";

const PACE = 3000; // milliseconds between two looks
const PATH = "api/v1/subscriptions";
const PAGE = 100; // rows that are shown, and added by “Show more”

let wish = null; // what somebody wants to keep, from the Live page
let onWish = () => {};

/** Offer to keep what a watch asks for. */
export function keep(request) {
  wish = request;
  location.hash = "#subscriptions";
  onWish();
}

/** The view; it looks at the server only while it is shown. */
export function subscriptions() {
  const notice = new Notice();
  const list = element("div", { class: "wide" });
  const details = element("section", { class: "panel", hidden: true, "aria-label": "Details" });
  const making = element("section", { class: "panel", hidden: true, "aria-label": "Keep this" });
  let timer = null;
  let chosen = null;
  let wanted = PAGE; // rows

  async function look() {
    try {
      const { found, next } = await pages(wanted);
      const more = next && button("Show more", () => { wanted += PAGE; look(); });
      list.replaceChildren(...[overview(found, choose), more].filter(Boolean));
      notice.clear();
      if (chosen && !next && !found.some((each) => each.id === chosen)) close();
    } catch (problem) {
      list.replaceChildren();
      notice.refuse(problem);
    }
  }

  function close() {
    chosen = null;
    details.hidden = true;
  }

  async function choose(id) {
    chosen = id;
    try {
      const [one, tried, dead] = await Promise.all([
        ask("GET", `${PATH}/${id}`), ask("GET", `${PATH}/${id}/deliveries`), ask("GET", `${PATH}/${id}/dead`)]);
      details.replaceChildren(...about(one, tried.deliveries, dead.dead_letters, act));
      details.hidden = false;
    } catch (problem) {
      notice.refuse(problem);
    }
  }

  /** Do something with the chosen one, and show what has become of it. */
  async function act(path, words, body, method = "POST") {
    try {
      const answer = await send(method, `${PATH}/${chosen}${path}`, { body });
      const told = answer.status === 204 ? null : await answer.json();
      const status = told?.delivery ? `: the sink answered ${told.delivery.status || "nothing"}` : "";
      await look();
      notice.say("good", `${words}${status}`);
      announce(words);
      if (method === "DELETE") close();
      else await choose(chosen);
    } catch (problem) {
      notice.refuse(problem);
    }
  }

  function offer() {
    if (!wish) return;
    const request = wish;
    wish = null;
    making.replaceChildren(...form(request, async (body) => {
      const made = await ask("POST", PATH, { body });
      making.replaceChildren(...told(made));
      await look();
      choose(made.id);
    }));
    making.hidden = false;
  }

  function watchOver(on) {
    clearInterval(timer);
    timer = null;
    if (!on) return;
    look();
    offer();
    timer = setInterval(() => document.visibilityState === "visible" && look(), PACE);
  }

  onWish = () => timer && offer();
  onSession(() => { close(); if (timer) look(); });
  const node = element("div", { class: "page" },
    element("h1", {}, "Subscriptions"),
    element("p", { class: "lead" }, "Filters with a name: what matches is kept and sent to you, or fetched by your workers. Make one with “Keep this” on the Live page."),
    notice.node, making,
    element("section", { class: "panel" }, element("h2", {}, "All"), list), details);
  return { node, shown: () => watchOver(true), hidden: () => watchOver(false) };
}

/** Ask for the first pages, until there are so many rows; `next` is null if these are all. */
async function pages(wanted) {
  let found = [];
  let next = null;
  do {
    const after = next ? `&after=${encodeURIComponent(next)}` : "";
    const page = await ask("GET", `${PATH}?limit=${PAGE}${after}`);
    found = found.concat(page.subscriptions);
    next = page.next;
  } while (next && found.length < wanted);
  return { found, next };
}

function overview(found, choose) {
  const heads = ["Name", "Event type", "Delivery", "Status", "Health", "Behind", "Dead letters"];
  const rows = found.map((each) => [
    button(each.name, () => choose(each.id), { class: "button link" }),
    each.event_type, each.delivery, each.status, each.health,
    each.lag === null ? "–" : count(each.lag), count(each.dead_letters)]);
  return table("Subscriptions", heads, rows, "None yet. Choose something on the Live page and press “Keep this”.");
}

function about(one, tried, dead, act) {
  const paused = one.status !== "active";
  const facts = [
    ["Filter", JSON.stringify(one.identifier)], ["Goes to", one.sink ?? "workers that pull"], ["Next sequence", count(one.next_sequence)],
    ["Oldest that waits", one.lag_seconds && `${count(Math.ceil(one.lag_seconds))} s old`],
    ["Delivered", count(one.delivered)], ["Why not", one.reason || one.problem], ["Next attempt", one.next_attempt],
  ].filter(([, value]) => value);
  const push = one.delivery === "push";
  return [
    element("h2", {}, one.name),
    element("dl", { class: "facts" }, facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
    element("div", { class: "row" },
      button(paused ? "Resume" : "Pause", () => act(paused ? "/resume" : "/pause", paused ? "Resumed" : "Paused")),
      push && button("Send a test", () => act("/test", "Test sent")),
      button("Delete", () => confirm(`Delete ${one.name}?`) && act("", "Deleted", undefined, "DELETE"))),
    push && element("h3", {}, "Last deliveries"),
    push && element("div", { class: "wide" }, table("Last deliveries", ["Time", "Notifications", "Request", "Status", "Answer"],
      tried.map((each) => [each.time, count(each.count), requestOf(each), each.status || "none", each.answer.slice(0, 200)]),
      "Nothing was sent yet.")),
    element("h3", {}, "Dead letters"),
    dead.length > 0 && element("div", { class: "row" },
      button("Retry all", () => act("/dead/retry", "On the way", {})), button("Skip all", () => act("/dead/skip", "Given up", {}))),
    element("div", { class: "wide" }, table("Dead letters", ["Sequence", "Attempts", "Status", "Answer", "Action"],
      dead.map((each) => [count(each.sequence), count(each.attempts), each.status || "none", each.answer.slice(0, 200),
        button("Retry", () => act("/dead/retry", "On the way", { sequences: [each.sequence] }), { "aria-label": `Retry ${each.sequence}` })]),
      "None.")),
  ].filter(Boolean);
}

/** A request as its beginning; its headers and the whole on demand. */
function requestOf(tried) {
  const headers = Object.entries(tried.request_headers).map(([name, value]) => `${name}: ${value}`);
  return element("details", {},
    element("summary", {}, element("code", {}, tried.request.slice(0, 120))),
    element("pre", {}, element("code", {}, [...headers, "", tried.request].join("\n"))));
}

function form(request, submit) {
  const notice = new Notice();
  const [nameId, sinkId] = [newId("name"), newId("sink")];
  const name = element("input", { id: nameId, required: true, pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]{0,63}", maxlength: "64" });
  const sink = element("input", { id: sinkId, type: "url", placeholder: "https://… or empty: workers pull" });
  async function make(event) {
    event.preventDefault();
    const { event_type, identifier, from_id, from_date } = request;
    const body = { name: name.value, event_type, identifier, ...(from_id ? { from_id } : {}), ...(from_date ? { from_date } : {}) };
    if (sink.value) Object.assign(body, { delivery: "push", sink: sink.value });
    try {
      await submit(body);
    } catch (problem) {
      notice.refuse(problem);
    }
  }
  return [
    element("h2", {}, "Keep this"),
    element("p", { class: "soft" }, `${request.event_type} ${JSON.stringify(request.identifier)}`),
    element("form", { class: "stack", onsubmit: make },
      element("label", { for: nameId }, "Name"), name,
      element("label", { for: sinkId }, "Send to"), sink,
      notice.node,
      element("div", { class: "row actions" }, element("button", { class: "button primary" }, "Keep")))];
}

function told(made) {
  const secret = made.secret
    ? [element("p", {}, "Its secret, which is shown only now:"), element("pre", {}, element("code", {}, made.secret))] : [];
  return [element("h2", {}, `${made.name} is ${made.status}`), made.reason && element("p", {}, made.reason), ...secret].filter(Boolean);
}

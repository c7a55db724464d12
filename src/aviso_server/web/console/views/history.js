// History: the same question about the past.

import { Chooser } from "../chooser.js";
import { button, element } from "../dom.js";
import { FORMS, download } from "../downloads.js";
import { BackTest, whyHere } from "../explanation.js";
import { Feed } from "../feed.js";
import { Histogram } from "../histogram.js";
import { WorldMap } from "../map.js";
import { Notice } from "../notice.js";
import { bytes, clocks, several } from "../numbers.js";
import { Origin, firstInLog } from "../origin.js";
import { SpanForm } from "../span_form.js";
import { showSnippets } from "../snippet_dialog.js";
import { replay } from "../stream.js";

const KEPT = 20_000;
const EMPTY = "Choose where to start and press Replay. What was published since then appears here.";

/** The view. */
export function history() {
  const map = new WorldMap("World map with the events of the past. Drag or use the arrow keys to move, plus and minus to zoom.");
  const feed = new Feed(map, { kept: KEPT, empty: EMPTY, live: false });
  const notice = new Notice();
  notice.say("calm", "Nothing replayed yet.");
  const chooser = new Chooser("filter", map);
  const span = new SpanForm();
  const chosen = element("div", { class: "row chosen", hidden: true });
  let brushed = null;
  const histogram = new Histogram((range) => {
    brushed = range;
    feed.between(range);
    chosen.hidden = range === null;
    if (range) {
      chosen.replaceChildren(
        element("span", {}, `${clocks(range).join(" to ")} UTC`),
        button("Replay only this", () => { span.write(range); run(); }, { class: "button small" }),
        button("Show all", () => histogram.unbrush(), { class: "button quiet small" }));
    }
  });
  const toggle = button("Replay", () => (running ? running.abort() : run()), { class: "button primary" });
  const backTest = new BackTest(() => { chooser.form.clearRefusal(); return chooser.request(); }, (problem) => chooser.form.showRefusal(problem));
  let running = null;

  async function run() {
    running = new AbortController();
    toggle.textContent = "Stop";
    chooser.form.clearRefusal();
    feed.clear();
    histogram.clear();
    const request = { ...chooser.request(), ...span.read() };
    feed.why = (id) => whyHere(request, id);
    notice.say("busy", "Reading …");
    feed.growing(true);
    chooser.fold(stage);
    try {
      const origin = new Origin(await firstInLog(request.event_type));
      const ending = await replay(request, (events) => {
        feed.add(events);
        histogram.add(events);
        origin.add(events);
      }, running.signal);
      conclude(ending, origin);
    } catch (problem) {
      if (problem.name === "AbortError") notice.say("calm", `Stopped after ${several(feed.received, "notification")}.`);
      else if (chooser.form.showRefusal(problem)) notice.clear();
      else notice.refuse(problem);
    }
    running = null;
    feed.growing(false);
    toggle.textContent = "Replay";
  }

  function conclude(ending, origin) {
    const found = several(feed.received, "notification");
    const kept = feed.received > KEPT ? `The page keeps the newest ${several(KEPT, "notification")}; a download has them all.` : "";
    if (ending.type === "replay_completed") return notice.say("good", feed.received ? `${found}. ${origin}` : "No notification matches. Start earlier, or widen the filter.", kept);
    notice.say("bad", `${found}, and there is more.`, ending.message, String(origin), kept);
  }

  async function save(form) {
    const request = { ...chooser.request(), ...span.read() };
    if (brushed) {
      for (const name of ["from_id", "to_id"]) delete request[name];
      Object.assign(request, { from_date: new Date(brushed[0]).toISOString(), to_date: new Date(brushed[1]).toISOString() });
    }
    try {
      notice.say("busy", `Fetching ${form} …`);
      notice.say("good", `Downloaded ${bytes(await download(form, request))} as ${form}.`);
    } catch (problem) {
      if (chooser.form.showRefusal(problem)) notice.clear();
      else notice.refuse(problem);
    }
  }

  chooser.ready.catch((problem) => notice.refuse(problem));
  const saves = Object.entries(FORMS).map(([form, { words }]) => button(form, () => save(form), { class: "button small", title: words }));
  const stage = element("div", { class: "stage" },
    element("div", { class: "panel result" }, notice.node, element("div", { class: "row" }, element("span", { class: "soft" }, "Download"), saves)),
    backTest.node,
    element("div", { class: "panel flush" }, map.node),
    element("div", { class: "panel" }, element("h2", {}, "Over time"), histogram.node,
      element("p", { class: "field-hint" }, "Drag over the bars to select a time."), chosen));
  const node = element("div", { class: "explorer" },
    element("section", { class: "panel setup", "aria-label": "What to replay" },
      element("h1", {}, "History"),
      element("p", { class: "lead" }, "Replay what was published before, with the same filters."),
      span.node, chooser.node,
      element("div", { class: "row actions" }, toggle, backTest.button,
        button("Copy as code", () => showSnippets("replay", { ...chooser.request(), ...span.read() })))),
    stage,
    feed.node);
  return { node, feed, shown: () => chooser.form.showOnMap() };
}

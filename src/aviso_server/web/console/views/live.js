// Live: choose what to hear about, and watch it come.

import { Activity } from "../activity.js";
import { Chooser } from "../chooser.js";
import { announce, button, element } from "../dom.js";
import { BackTest, whyHere } from "../explanation.js";
import { Feed } from "../feed.js";
import { WorldMap } from "../map.js";
import { Notice } from "../notice.js";
import { clock, count } from "../numbers.js";
import { onSession } from "../session.js";
import { showSnippets } from "../snippet_dialog.js";
import { Watch } from "../stream.js";
import { keep } from "./subscriptions.js";

const KEPT = 2000;
const BEFORE = "Nothing yet. Press Watch, then publish something on the Publish page, or wait for others to.";
const WATCHING = "Nothing yet. Publish something on the Publish page, or wait for others to.";

/** The view; `node` is shown when its page is. */
export function live() {
  const map = new WorldMap("World map with the events received. Drag or use the arrow keys to move, plus and minus to zoom.");
  const feed = new Feed(map, { kept: KEPT, empty: BEFORE, live: true });
  const activity = new Activity();
  feed.onSecond = (seconds) => activity.show(seconds);
  const notice = new Notice();
  const chooser = new Chooser("filter", map, () => compare());
  const changed = element("p", { class: "changed", hidden: true }, "The filter has changed. ", button("Restart", () => { stop(); start(); }, { class: "button small" }));
  const toggle = button("Watch", () => (watch ? stop() : start()), { class: "button primary" });
  const state = element("p", { class: "stream-state", "data-phase": "off" }, "Not watching");
  const backTest = new BackTest(() => { chooser.form.clearRefusal(); return chooser.request(); }, (problem) => chooser.form.showRefusal(problem));
  const journal = element("ol", { class: "journal", "aria-label": "Connection history" });
  let watch = null;
  let asked = "";

  function start() {
    chooser.form.clearRefusal();
    notice.clear();
    journal.replaceChildren();
    feed.clear();
    feed.waitFor(WATCHING);
    const request = chooser.request();
    asked = JSON.stringify(request);
    feed.why = (id) => whyHere(request, id);
    const current = new Watch(request, (events) => feed.add(events), (change) => {
      if (watch === current) show(change);
    });
    watch = current;
    toggle.textContent = "Stop";
    compare();
    current.run();
    chooser.fold(stage);
  }

  /** Say so when the form asks for something else than what is watched. */
  function compare() {
    changed.hidden = !watch || JSON.stringify(chooser.request()) === asked;
  }

  function stop() {
    watch?.stop();
    watch = null;
    toggle.textContent = "Watch";
    compare();
    feed.waitFor(BEFORE);
    tell("off", "Not watching");
  }

  /** Take back what was refused: somebody else may be asking now. */
  function forgetRefusal() {
    if (watch) return;
    notice.clear();
    chooser.form.clearRefusal();
    tell("off", "Not watching");
  }

  function tell(phase, words) {
    state.dataset.phase = phase;
    state.textContent = words;
    announce(words);
  }

  function note(words) {
    journal.prepend(element("li", {}, element("time", {}, clock(Date.now())), words));
    while (journal.childElementCount > 5) journal.lastElementChild.remove();
  }

  function show({ phase, resumed, reason, seconds, refusal, reconnections }) {
    const from = resumed?.from_id ? `sequence ${count(Number(resumed.from_id))}` : resumed?.from_date;
    if (phase === "connecting") tell("busy", reconnections ? "Reconnecting" : "Connecting");
    if (phase === "catching up") tell("busy", `Catching up from ${from}`);
    if (phase === "live") {
      tell("live", `Watching ${watch.request.event_type}`);
      note(reconnections && from ? `Reconnected and resumed at ${from}; nothing was missed` : reconnections ? "Reconnected" : "Connected");
    }
    if (phase === "waiting") {
      tell("waiting", `Connection lost. Retrying in ${seconds} s`);
      note(reason);
    }
    if (phase !== "refused") return;
    stop();
    if (!chooser.form.showRefusal(refusal)) notice.refuse(refusal);
    tell("off", "The server refused this watch");
  }

  onSession(forgetRefusal);
  chooser.ready.catch((problem) => notice.refuse(problem));
  const stage = element("div", { class: "stage" },
    element("div", { class: "panel status" }, state, changed, journal),
    backTest.node,
    element("div", { class: "panel flush" }, map.node),
    element("section", { class: "panel" }, element("div", { class: "head" }, element("h2", {}, "Last minute"), activity.words), activity.node));
  const node = element("div", { class: "explorer" },
    element("section", { class: "panel setup", "aria-label": "What to watch" },
      element("h1", {}, "Live"),
      element("p", { class: "lead" }, "Choose what to watch. Matching notifications appear here as they are published."),
      chooser.node,
      element("div", { class: "row actions" }, notice.node, toggle, backTest.button,
        button("Copy as code", () => showSnippets("watch", chooser.request())),
        button("Keep this", () => keep(chooser.request())))),
    stage,
    feed.node);
  return { node, feed, shown: () => chooser.form.showOnMap() };
}

// Live: choose what to hear about, and watch it come.

import { Activity } from "../activity.js";
import { Chooser } from "../chooser.js";
import { announce, button, element } from "../dom.js";
import { BackTest, whyHere } from "../explanation.js";
import { Feed } from "../feed.js";
import { WorldMap } from "../map.js";
import { Notice } from "../notice.js";
import { clock, count } from "../numbers.js";
import { showSnippets } from "../snippet_dialog.js";
import { Watch } from "../stream.js";

const KEPT = 2000;
const EMPTY = "Nothing has come yet. Press Watch; then publish something on the Publish page, or wait for others to.";

/** The view; `node` is shown when its page is. */
export function live() {
  const map = new WorldMap("World map with the events that came. Drag or use the arrow keys to move, plus and minus to zoom.");
  const feed = new Feed(map, { kept: KEPT, empty: EMPTY, live: true });
  const activity = new Activity();
  feed.onSecond = (seconds) => activity.show(seconds);
  const notice = new Notice();
  const chooser = new Chooser("filter", map);
  const toggle = button("Watch", () => (watch ? stop() : start()), { class: "button primary" });
  const state = element("p", { class: "stream-state", "data-phase": "off" }, "Not watching");
  const backTest = new BackTest(() => { chooser.form.clearRefusal(); return chooser.request(); }, (problem) => chooser.form.showRefusal(problem));
  const journal = element("ol", { class: "journal", "aria-label": "What happened to the connection" });
  let watch = null;

  function start() {
    chooser.form.clearRefusal();
    notice.clear();
    journal.replaceChildren();
    feed.clear();
    const request = chooser.request();
    feed.why = (id) => whyHere(request, id);
    const current = new Watch(request, (events) => feed.add(events), (change) => {
      if (watch === current) show(change);
    });
    watch = current;
    toggle.textContent = "Stop";
    current.run();
  }

  function stop() {
    watch?.stop();
    watch = null;
    toggle.textContent = "Watch";
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
      note(reconnections && from ? `Reconnected; went on with ${from}, nothing missed` : reconnections ? "Reconnected" : "Connected");
    }
    if (phase === "waiting") {
      tell("waiting", `Connection lost. Trying again in ${seconds} s`);
      note(reason);
    }
    if (phase !== "refused") return;
    stop();
    if (!chooser.form.showRefusal(refusal)) notice.refuse(refusal);
    tell("off", "The server refused this watch");
  }

  chooser.ready.catch((problem) => notice.refuse(problem));
  const node = element("div", { class: "explorer" },
    element("section", { class: "panel setup", "aria-label": "What to watch" },
      element("h1", {}, "Live"),
      element("p", { class: "lead" }, "Say what you want to hear about. It appears here the moment it is published."),
      chooser.node,
      notice.node,
      element("div", { class: "row actions" }, toggle, backTest.button,
        button("Copy as code", () => showSnippets("watch", chooser.request())))),
    element("div", { class: "stage" },
      element("div", { class: "panel status" }, state, journal),
      backTest.node,
      element("div", { class: "panel flush" }, map.node),
      element("section", { class: "panel" }, element("div", { class: "head" }, element("h2", {}, "Last minute"), activity.words), activity.node)),
    feed.node);
  return { node, feed, shown: () => chooser.form.showOnMap() };
}

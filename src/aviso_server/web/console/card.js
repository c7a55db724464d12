// One notification as a card.

import { button, copy, element, newId } from "./dom.js";
import { middleOf, parsePairs } from "./geometry.js";
import { clock, several } from "./numbers.js";

const LONG = 44; // characters of a value that a card shows

/** A card. `onPick` hears that the event is to be shown on the map; `why` asks for the reasons that it came. */
export function card(event, onPick, why) {
  const values = Object.entries(event.data.identifier).map(([name, value]) => element("span", { class: "value" },
    element("span", { class: "name" }, name), " ", shown(name, value)));
  return element("article", { class: "card", "data-id": event.id },
    element("header", {},
      element("span", { class: "sequence", title: event.id }, `#${event.sequence}`),
      element("time", { datetime: event.time, title: event.time }, clock(event.time)),
      event.live === false ? element("span", { class: "badge" }, "history") : null,
      event.shape ? button("Show on map", () => onPick(event, middleOf(event.shape)), { class: "link" }) : null),
    element("p", { class: "values" }, values),
    payload(event),
    why ? reasons(event, why) : null);
}

/** The reasons why it came, asked for when somebody wants to know. */
function reasons(event, why) {
  const place = element("div", { class: "why", id: newId("why"), role: "status", hidden: true });
  const opener = button("Why is this here?", async () => {
    place.hidden = !place.hidden;
    opener.setAttribute("aria-expanded", String(!place.hidden));
    if (place.hidden || place.dataset.answered) return;
    place.replaceChildren("Checking …");
    try {
      place.replaceChildren(...await why(event.id));
      place.dataset.answered = "yes";
    } catch (problem) {
      place.replaceChildren(problem.message);
    }
  }, { class: "link", "aria-expanded": "false", "aria-controls": place.id });
  return element("div", { class: "reason" }, opener, place);
}

function payload(event) {
  const content = event.data.payload;
  const preview = content === null ? "no payload" : short(content, 90);
  const details = element("details", {}, element("summary", {}, element("span", { class: "name" }, "payload"), " ", preview));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const { live, arrived, shape, words, ...bare } = event;
    const whole = JSON.stringify(bare, null, 2);
    details.append(
      element("pre", { tabindex: "0", "aria-label": "Payload" }, JSON.stringify(content, null, 2)),
      element("details", {}, element("summary", {}, "the whole event"), element("pre", { tabindex: "0", "aria-label": "Whole event" }, whole)),
      button("Copy the event", (pressed) => copy(whole, pressed.currentTarget), { class: "button small" }));
  });
  return details;
}

/** A value of an identifier; of a place on the map only how large it is, for the map has the rest. */
function shown(name, value) {
  if (name === "point_cloud" && Array.isArray(value)) return several(value.length, "point");
  const pairs = Array.isArray(value) ? value : /^\(-?[\d.]+,/.test(value) ? parsePairs(value) : null;
  return pairs ? `area with ${several(pairs.length - 1, "corner")}` : short(value);
}

function short(value, longest = LONG) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
}

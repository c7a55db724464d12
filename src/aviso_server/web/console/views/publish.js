// Publish: the same form from the other side.

import { send } from "../api.js";
import { Chooser } from "../chooser.js";
import { button, element } from "../dom.js";
import { WorldMap } from "../map.js";
import { Notice } from "../notice.js";
import { clock } from "../numbers.js";
import { showSnippets } from "../snippet_dialog.js";

const MOST = 8;

/** The view. */
export function publish() {
  const map = new WorldMap("World map to draw on. Drag or use the arrow keys to move, plus and minus to zoom.");
  const notice = new Notice();
  const chooser = new Chooser("publish", map, () => preview());
  const payload = element("textarea", { id: "payload", rows: 5, spellcheck: "false", oninput: () => preview(), "aria-describedby": "payload-hint" }, '{\n  "note": "hello"\n}');
  const payloadError = element("p", { class: "field-error", id: "payload-error", hidden: true });
  const hint = element("p", { class: "field-hint", id: "payload-hint" });
  const shown = element("pre", { class: "code", tabindex: "0", "aria-label": "The request" });
  const recent = element("ol", { class: "journal", "aria-label": "Published from this page" });
  const sendButton = button("Publish", () => run(), { class: "button primary" });

  function request() {
    const whole = chooser.request();
    const text = payload.value.trim();
    return text ? { ...whole, payload: JSON.parse(text) } : whole;
  }

  function preview() {
    hint.textContent = chooser.needsPayload ? "Any JSON value. This event type requires one." : "Any JSON value, or empty.";
    try {
      shown.textContent = JSON.stringify(request(), null, 2);
      complain("");
      return true;
    } catch (problem) {
      shown.textContent = "Nothing yet: the payload is not JSON.";
      complain(`The payload is not JSON: ${problem.message}`);
      return false;
    }
  }

  function complain(words) {
    payloadError.textContent = words;
    payloadError.hidden = !words;
    payload.toggleAttribute("aria-invalid", Boolean(words));
  }

  async function run() {
    chooser.form.clearRefusal();
    notice.clear();
    if (!preview()) return payload.focus();
    sendButton.disabled = true;
    const whole = request();
    try {
      await send("POST", "api/v1/notification", { body: whole });
      notice.say("good", "Stored, and sent to everybody who watches for it.");
      recent.prepend(element("li", {}, element("time", {}, clock(Date.now())), `${whole.event_type} ${JSON.stringify(whole.identifier)}`));
      while (recent.childElementCount > MOST) recent.lastElementChild.remove();
    } catch (problem) {
      if (problem.fieldOf([]) === "payload") complain(problem.message);
      else if (!chooser.form.showRefusal(problem)) notice.refuse(problem);
    }
    sendButton.disabled = false;
  }

  chooser.ready.then(preview, (problem) => notice.refuse(problem));
  const node = element("div", { class: "explorer two" },
    element("section", { class: "panel setup", "aria-label": "What to publish" },
      element("h1", {}, "Publish"),
      element("p", { class: "lead" }, "Send a notification to everybody who watches for it."),
      chooser.node,
      element("div", { class: "field" }, element("label", { for: "payload" }, "Payload"), payload, hint, payloadError),
      element("div", { class: "row actions" }, notice.node, sendButton,
        button("Copy as code", () => preview() && showSnippets("notification", request())))),
    element("div", { class: "stage" },
      element("div", { class: "panel flush" }, map.node),
      element("section", { class: "panel" }, element("h2", {}, "What is sent"), shown),
      element("section", { class: "panel" }, element("h2", {}, "Published from this page"), recent)));
  return { node, shown: () => {} };
}

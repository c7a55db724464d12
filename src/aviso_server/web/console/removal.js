// Removing notifications for good: what it would touch first, then a typed word, then the deed.

import { ask } from "./api.js";
import { button, element, newId } from "./dom.js";
import { Notice } from "./notice.js";
import { EVERYTHING, planOf } from "./removal_plan.js";

/** The tool; `offer` tells it which streams there are, `onDone` hears that something was removed. */
export function removal(onDone) {
  const id = newId("removal");
  const notice = new Notice();
  const what = element("select", { id, onchange: () => show() });
  const sequence = element("input", { id: `${id}-sequence`, type: "number", min: 1, value: 1 });
  const one = element("input", { type: "checkbox", id: `${id}-one`, onchange: () => show() });
  const typed = element("input", { id: `${id}-typed`, type: "text", autocomplete: "off", spellcheck: "false", oninput: () => arm() });
  const typedLabel = element("label", { for: typed.id });
  const go = button("Remove permanently", () => remove(), { class: "button danger", disabled: true });
  const confirm = element("div", { class: "row confirm", hidden: true }, typedLabel, typed, go);
  const sequenceRow = element("div", { class: "field", hidden: true }, element("label", { for: sequence.id }, "Sequence"), sequence);
  const oneRow = element("label", { class: "check" }, one, "only one notification");
  let plan = null;

  function show() {
    oneRow.hidden = what.value === EVERYTHING;
    sequenceRow.hidden = oneRow.hidden || !one.checked;
    forget();
  }

  function forget() {
    plan = null;
    confirm.hidden = true;
    typed.value = "";
    notice.clear();
  }

  function arm() {
    go.disabled = plan === null || typed.value.trim() !== plan.word;
  }

  /** Ask the server how many notifications it is about, and change nothing. */
  async function check() {
    forget();
    try {
      plan = await planOf(what.value, one.checked ? Number(sequence.value) : null);
    } catch (problem) {
      return notice.refuse(problem);
    }
    const warning = "Readers who have not received them never will. Their sequences are not reused.";
    notice.say(plan.touched ? "busy" : "calm", ...plan.words, plan.touched ? warning : "");
    if (!plan.touched) return;
    typedLabel.textContent = `Type ${plan.word} to confirm`;
    confirm.hidden = false;
    arm();
    typed.focus();
  }

  async function remove() {
    if (plan === null || typed.value.trim() !== plan.word) return;
    const { request } = plan;
    try {
      const { message } = await ask(...request);
      forget();
      notice.say("good", message);
      onDone();
    } catch (problem) {
      notice.refuse(problem);
    }
  }

  const node = element("section", { class: "panel removal" },
    element("h2", {}, "Remove notifications"),
    element("p", { class: "soft" }, "Preview first. Nothing is removed until you type its name to confirm."),
    element("div", { class: "row" },
      element("div", { class: "field" }, element("label", { for: id }, "Of"), what), oneRow, sequenceRow,
      button("Preview", () => check())),
    notice.node, confirm);
  sequence.addEventListener("input", forget);
  return {
    node,
    offer: (streams) => {
      const names = [...streams.map((stream) => [stream.stream, stream.event_type]), [EVERYTHING, "every stream"]];
      if (names.length === what.childElementCount) return;
      const before = what.value;
      what.replaceChildren(...names.map(([value, words]) => element("option", { value }, words)));
      if (names.some(([value]) => value === before)) what.value = before;
      show();
    },
  };
}

// Lines that say how things stand, and what to do about it.

import { element } from "./dom.js";

/** A box for one message at a time. `kind` is "good", "bad", "busy" or "calm". */
export class Notice {
  constructor() {
    this.node = element("div", { class: "notice", role: "status", hidden: true });
  }

  /** Say this; more lines may follow the first. */
  say(kind, ...lines) {
    this.node.dataset.kind = kind;
    this.node.hidden = false;
    this.node.replaceChildren(...lines.filter(Boolean).map((line) => element("p", {}, line)));
  }

  /** Say why something was refused, and what to do. */
  refuse(refusal) {
    this.say("bad", refusal.message, refusal.details, refusal.advice);
  }

  /** Say nothing. */
  clear() {
    this.node.hidden = true;
  }
}

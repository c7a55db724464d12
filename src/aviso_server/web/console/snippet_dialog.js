// The dialog that shows the request as code.

import { button, copy, element } from "./dom.js";
import { LANGUAGES } from "./snippets.js";

const WORDS = { watch: "This watch as code", replay: "This replay as code", notification: "This notification as code" };
let language = Object.keys(LANGUAGES)[0];

/** Show a request in all languages; the one chosen last comes first. */
export function showSnippets(kind, request) {
  const code = element("pre", { class: "code", tabindex: "0", "aria-label": "Code" });
  const tabs = Object.keys(LANGUAGES).map((name) => element("button", {
    type: "button", class: "tab", role: "tab", id: `language-${name}`, "aria-controls": "language-code", onclick: () => show(name), onkeydown: move,
  }, name));
  const show = (name) => {
    language = name;
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab.textContent === name));
      tab.tabIndex = tab.textContent === name ? 0 : -1;
    }
    code.textContent = LANGUAGES[name](kind, request);
    panel.setAttribute("aria-labelledby", `language-${name}`);
  };
  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(event.currentTarget) + step + tabs.length) % tabs.length];
    show(next.textContent);
    next.focus();
  }
  const panel = element("div", { role: "tabpanel", id: "language-code" }, code);
  const dialog = element("dialog", { class: "dialog", "aria-labelledby": "snippets-title", onclose: () => dialog.remove() },
    element("h2", { id: "snippets-title" }, WORDS[kind]),
    element("div", { class: "tabs", role: "tablist", "aria-label": "Language" }, tabs),
    panel,
    element("div", { class: "row end" },
      button("Copy", (event) => copy(code.textContent, event.currentTarget), { class: "button primary", autofocus: true }),
      button("Close", () => dialog.close())));
  document.body.append(dialog);
  show(language);
  dialog.showModal();
}

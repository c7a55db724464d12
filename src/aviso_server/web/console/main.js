// The console: which page is shown, and what all pages share.

import { ask } from "./api.js";
import { onSession } from "./session.js";
import { showSignIn } from "./sign_in.js";
import { themeButton } from "./theme.js";
import { apiPage } from "./views/api_page.js";
import { history } from "./views/history.js";
import { insight, whatThereIs } from "./views/insight.js";
import { live } from "./views/live.js";
import { operate } from "./views/operate.js";
import { publish } from "./views/publish.js";
import { subscriptions } from "./views/subscriptions.js";

const VIEWS = { live, history, insight, subscriptions, publish, operate, api: apiPage };
const READY_PACE = 15_000;

const main = document.getElementById("main");
const guide = document.getElementById("guide");
const made = new Map([["guide", { node: guide }]]);
let current = null;

/** Show the page that the address names; pages are made when they are needed first. */
function show() {
  const asked = location.hash.slice(1);
  const name = asked in VIEWS || asked === "guide" ? asked : "live";
  if (!made.has(name)) {
    const view = VIEWS[name]();
    view.node.id = `view-${name}`;
    made.set(name, view);
    main.append(view.node);
  }
  for (const [each, view] of made) view.node.hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (current && current !== name) made.get(current).hidden?.();
  made.get(name).shown?.();
  const title = made.get(name).node.querySelector("h1, h2").textContent;
  document.title = `${title} · aviso-server`;
  if (current && current !== name) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  current = name;
}

async function showState() {
  const place = document.getElementById("state");
  try {
    await ask("GET", "ready");
    place.dataset.state = "ready";
    place.textContent = "Ready";
  } catch (problem) {
    place.dataset.state = "away";
    place.textContent = problem.status ? "Not ready" : "Unreachable";
  }
}

/** The link to Insight is there if the server has any for whoever is signed in. */
async function offerInsight() {
  document.getElementById("insight-link").hidden = !(await whatThereIs()).length;
}

addEventListener("hashchange", show);
onSession(offerInsight);
show();
themeButton(document.getElementById("theme"));
showSignIn(document.getElementById("sign-in"));
showState();
offerInsight();
setInterval(() => document.visibilityState === "visible" && showState(), READY_PACE);

// The sign-in field, shown where the server checks credentials.

import { ask } from "./api.js";
import { announce, button, element } from "./dom.js";
import { signIn, signedIn } from "./session.js";

/** Put the field into its place, if this server wants to know who is asking. */
export async function showSignIn(place) {
  try {
    const { auth_enabled: enabled } = await ask("GET", "api/v1/auth/check");
    if (!enabled) return;
  } catch (problem) {
    if (problem.status !== 401) return;
  }
  const input = element("input", {
    type: "password", id: "token", placeholder: "Token", "aria-label": "Token", autocomplete: "off", spellcheck: "false",
    onkeydown: (event) => event.key === "Enter" && enter(),
  });
  const words = element("span", { class: "who", role: "status" });
  const go = button("Sign in", () => (signedIn() ? leave() : enter()), { class: "button small" });

  async function enter() {
    signIn(input.value);
    try {
      const { username, admin } = await ask("GET", "api/v1/auth/check");
      say(admin ? `${username}, administrator` : username, true);
    } catch (problem) {
      signIn("");
      say(problem.status === 401 ? "This token is not accepted" : problem.message, false);
    }
  }

  function leave() {
    signIn("");
    input.value = "";
    say("", false);
  }

  function say(text, known) {
    words.textContent = text;
    announce(text);
    input.hidden = known;
    if (known) input.value = ""; // the session has it; the page need not show how long it is
    go.textContent = known ? "Sign out" : "Sign in";
  }

  place.replaceChildren(words, input, go);
}

// Who is using the page. The token lives in this variable and nowhere else: a reload forgets it.

let token = "";
const listeners = new Set();

/** Headers that prove who is asking; none without a token. */
export function credentials() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Use this token from now on; an empty one signs out. */
export function signIn(given) {
  token = given.trim();
  for (const listener of listeners) listener();
}

/** Whether a token is in use. */
export function signedIn() {
  return token !== "";
}

/** Call the listener whenever somebody signs in or out. */
export function onSession(listener) {
  listeners.add(listener);
}

// Requests to the server this page came from, and its refusals.

import { credentials } from "./session.js";

/** Where the server is; relative to the page, so that a proxy may add a prefix. */
export const here = new URL(".", document.baseURI);

/** An answer other than success, or none at all (status 0). */
export class Refusal extends Error {
  constructor(status, message, members = {}) {
    super(message);
    this.status = status;
    this.code = members.code ?? "";
    this.details = members.details ?? "";
    this.errors = members.errors ?? []; // everything that is wrong, if it is more than one thing
    this.requestId = members.request_id ?? "";
  }

  /** Which of these fields the server complains about, if it names one: it quotes the name. */
  fieldOf(names) {
    const words = `${this.message} ${this.details}`;
    if (this.code && /^Payload is required|Field 'payload'/.test(this.message)) return "payload";
    const found = names.map((name) => [name, position(words, name)]).filter(([, place]) => place >= 0);
    found.sort((one, other) => one[1] - other[1]);
    return found.length ? found[0][0] : null;
  }

  /** What the reader of the page can do about it. */
  get advice() {
    if (this.status === 0) return "Is the server running? Check it, then try again.";
    if (this.status === 401) return "Sign in at the top of the page with a token that this server accepts.";
    if (this.status === 403) return "Your token does not allow this. Sign in with one that does.";
    if (this.status === 429) return "Wait a moment, then try again.";
    if (this.status >= 500) return `Report this to the operator of the server, with the request id ${this.requestId}.`;
    return "";
  }
}

function position(words, name) {
  const places = [words.indexOf(`'${name}'`), words.indexOf(`identifier.${name}`)].filter((place) => place >= 0);
  return places.length ? Math.min(...places) : -1;
}

/** Send a request and return the answer; throws a Refusal for everything but success. */
export async function send(method, path, { body, accept, signal, lenient } = {}) {
  const headers = { ...credentials() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (accept) headers.Accept = accept;
  if (lenient) headers.Prefer = "handling=lenient"; // required fields may be left out of a replay
  let answer;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(new URL(path, here), { method, headers, body: text, signal, cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refusal(0, "The server cannot be reached.");
  }
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
}

/** The JSON of an answer. */
export async function ask(method, path, options) {
  return (await send(method, path, options)).json();
}

async function refusalOf(answer) {
  const text = await answer.text();
  try {
    const members = JSON.parse(text);
    const words = members.message ?? members.error ?? `The server answered ${answer.status}.`;
    const details = members.details && !words.includes(members.details) ? members.details : "";
    return new Refusal(answer.status, words, { ...members, details });
  } catch {
    return new Refusal(answer.status, text.trim() || `The server answered ${answer.status}.`);
  }
}

// A replay as a file.

import { send } from "./api.js";
import { element } from "./dom.js";

/** The forms that a replay can be downloaded in. */
export const FORMS = {
  NDJSON: { accept: "application/x-ndjson", ending: "ndjson", words: "one event per line" },
  Arrow: { accept: "application/vnd.apache.arrow.stream", ending: "arrows", words: "a table for programs" },
  Parquet: { accept: "application/vnd.apache.parquet", ending: "parquet", words: "a table as a file" },
};

/** Fetch a replay in a form and hand it to the browser as a file; resolves with its size in bytes. */
export async function download(form, request) {
  const answer = await send("POST", "api/v1/replay", { body: request, accept: FORMS[form].accept });
  const content = await answer.blob();
  const link = element("a", { href: URL.createObjectURL(content), download: `${request.event_type}.${FORMS[form].ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  return content.size;
}

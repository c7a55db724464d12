// Numbers, sizes and times as people read them. Times are UTC everywhere.

const WHOLE = new Intl.NumberFormat("en-GB");

/** 1234567 as 1,234,567. */
export function count(number) {
  return WHOLE.format(number);
}

/** A number of things: "1 notification", "2 notifications". */
export function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Bytes with a unit. */
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = number;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** Something per second. */
export function perSecond(rate) {
  return `${rate >= 10 || rate === 0 ? count(Math.round(rate)) : rate.toFixed(1)}/s`;
}

/** Seconds as the largest unit that divides them well. */
export function duration(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= size && seconds % size === 0) return several(seconds / size, unit);
  }
  return several(seconds, "second");
}

/** The time of day of an instant, with the date if it is not today. */
export function clock(instant) {
  return clocks([instant])[0];
}

/** The same for several instants that are read together: all of them with the date, or none. */
export function clocks(instants) {
  const texts = instants.map((instant) => new Date(instant).toISOString());
  const short = texts.every((text) => text.startsWith(today()));
  return texts.map((text) => (short ? text.slice(11, 19) : `${text.slice(0, 10)} ${text.slice(11, 19)}`));
}

/** Date and time of an instant, to the minute. */
export function stamp(instant) {
  return new Date(instant).toISOString().slice(0, 16).replace("T", " ");
}

/** Today in UTC as YYYY-MM-DD. */
export function today() {
  return new Date().toISOString().slice(0, 10);
}

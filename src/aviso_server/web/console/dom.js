// Elements, made from plain values. Text stays text and is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; functions are listeners, false and null leave an attribute out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for the parts of a drawing. */
export function drawing(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return made;
}

let made = 0;

/** An id that no other element has. */
export function newId(start) {
  made += 1;
  return `${start}-${made}`;
}

/** Say something to screen readers without moving anything on the page. */
export function announce(words) {
  const place = document.getElementById("announcements");
  if (place) place.textContent = words;
}

/** A button. */
export function button(words, onclick, attributes = {}) {
  return element("button", { type: "button", class: "button", onclick, ...attributes }, words);
}

/** Copy text and say so on the button that was pressed. */
export async function copy(text, pressed) {
  const before = pressed.textContent;
  try {
    await navigator.clipboard.writeText(text);
    pressed.textContent = "Copied";
  } catch {
    pressed.textContent = "Copy it by hand"; // without TLS some browsers keep the clipboard shut
  }
  announce(pressed.textContent);
  setTimeout(() => { pressed.textContent = before; }, 1600);
}

// Plots: bars over time, lines over time, and values with their counts.

import { drawing, element } from "./dom.js";
import { count } from "./numbers.js";

const WIDTH = 1000;
const HEIGHT = 160;

function plot(label, ...content) {
  return drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, content);
}

/** A picture with its axes: what its heights stand for, from the top down, and the first and the last time. */
function withAxes(picture, heights, from, to) {
  const short = (time) => time.slice(0, 16).replace("T", " ");
  return element("div", { class: "scaled" },
    element("div", { class: "upright", "aria-hidden": "true" }, heights.map((words) => element("span", {}, words))),
    picture, element("p", { class: "axis" }, element("span", {}, short(from)), element("span", {}, short(to))));
}

/** Counts over time: rows with `time` and `count`. */
export function timeBars(rows, { from, to, step }) {
  const [start, end] = [Date.parse(from), Date.parse(to)];
  const wide = (step === "hour" ? 3_600_000 : 86_400_000) / (end - start) * WIDTH;
  const highest = Math.max(1, ...rows.map((row) => row.count));
  const rects = rows.map((row) => {
    const height = Math.max(2, (row.count / highest) * (HEIGHT - 4));
    const x = ((Date.parse(row.time) - start) / (end - start)) * WIDTH;
    return drawing("rect", { x, y: HEIGHT - height, width: Math.max(1, wide * 0.88), height },
      drawing("title", {}, `${row.time.slice(0, 16).replace("T", " ")} UTC: ${count(row.count)}`));
  });
  const words = `Notifications per ${step}`;
  const picture = plot(`${words}, at most ${count(highest)}`, drawing("g", { class: "bars" }, rects));
  return element("div", { class: "plot" }, element("p", { class: "soft" }, words), withAxes(picture, [count(highest), "0"], from, to));
}

/** Lines over time: `lines` has a name and a function of a row for each; `words` says a value. */
export function timeLines(rows, { from, to }, lines, words) {
  const [start, end] = [Date.parse(from), Date.parse(to)];
  const values = rows.flatMap((row) => lines.map(([, value]) => value(row)));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const height = (value) => HEIGHT - 4 - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 8);
  const drawn = lines.map(([name, value], place) => {
    const points = rows.map((row) => [((Date.parse(row.time) - start) / (end - start)) * WIDTH, height(value(row))]);
    if (points.length === 1) points.unshift([points[0][0] - 12, points[0][1]]);
    return drawing("polyline", { class: `line line-${place}`, points: points.map((point) => point.map((each) => each.toFixed(1)).join(",")).join(" ") }, drawing("title", {}, name));
  });
  const names = lines.map(([name]) => name).join(", ");
  const label = `${names} over time, between ${words(low)} and ${words(high)}`;
  const legend = element("p", { class: "legend" }, lines.map(([name], place) => element("span", { class: `line-${place}` }, name)));
  return element("div", { class: "plot" }, legend, withAxes(plot(label, drawn), high > low ? [words(high), words(low)] : ["", words(high), ""], from, to));
}

/** Values with their counts, the most frequent first; bars are behind the numbers, which say it all. */
export function ranking(label, rows) {
  const highest = Math.max(1, ...rows.map((row) => row.count));
  return element("table", { class: "ranking", "aria-label": label },
    element("thead", { class: "unseen" }, element("tr", {}, ["Value", "Share", "Notifications"].map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, rows.map((row) => element("tr", {},
      element("th", { scope: "row" }, row.value),
      element("td", { class: "share", "aria-hidden": "true" }, drawing("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" }, drawing("rect", { width: (row.count / highest) * 100, height: 10 }))),
      element("td", { class: "number" }, count(row.count))))));
}

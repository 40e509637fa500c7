// Numbers, durations and times in units that are easy to read.

import { element } from "./dom.js";

const plain = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) =>
  value === null || value === undefined ? "–" : plain.format(value);
export const short = (value) =>
  Math.abs(value) < 10_000 ? plain.format(Math.round(value * 10) / 10) : compact.format(value);

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = count / 1024;
  while (value >= 1024 && units.length > 1) {
    value /= 1024;
    units.shift();
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[0]}`;
}

const MANY_DAYS = 100; // from so many days on, hours are left out
const UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
];

// 0.25 → 250 ms; 15 → 15 s; 3600 → 1 h; 5400 → 1 h 30 min: the two largest units, without zeros.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  const parts = [];
  let rest = Math.round(seconds);
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) parts.push(`${number(count)} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2 || count >= MANY_DAYS) break;
  }
  return parts.join(" ");
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const dayOfYear = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
});
const utc = (time) =>
  new Date(time)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z$/, " UTC");

// The zone of all times on the page, which is shown once.
export const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "longOffset" })
  .formatToParts()
  .find(({ type }) => type === "timeZoneName")
  .value.replace("GMT", "UTC");
export const zoneName = Intl.DateTimeFormat().resolvedOptions().timeZone;

// A time in the reader's zone: today's without the date, another year's with the year.
export function timeText(text) {
  const [at, now] = [new Date(text), new Date()];
  if (at.toDateString() === now.toDateString()) return clock.format(at);
  const format = at.getFullYear() === now.getFullYear() ? day : dayOfYear;
  return `${format.format(at)}, ${clock.format(at)}`;
}

export function time(text) {
  if (!text) return "–";
  return element("time", { datetime: text, class: "time", title: utc(text) }, timeText(text));
}

export const counted = (count, singular, plural = `${singular}s`) =>
  `${number(count)} ${count === 1 ? singular : plural}`;

// How long ago something was. The page keeps the text current.
export function ago(text, suffix = " ago") {
  if (!text) return "–";
  const node = element("time", { datetime: text, title: `${timeText(text)} (${utc(text)})` });
  node.dataset.since = Date.parse(text);
  node.dataset.suffix = suffix;
  tick(node);
  return node;
}

function tick(node) {
  const seconds = Math.max((Date.now() - node.dataset.since) / 1000, 0);
  node.textContent =
    duration(seconds < 1 ? 0.5 : Math.round(seconds)).replace("500 ms", "0 s") +
    node.dataset.suffix;
}

setInterval(() => document.querySelectorAll("[data-since]").forEach(tick), 1000);

export function json(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

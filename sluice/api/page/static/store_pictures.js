// What a store holds, as a picture: windows over time, sessions on a time axis, the largest values
// as bars, and a key's values in the last snapshots.

import { get, getExact, isExact, isNumber, part, query } from "./api.js";
import { pointsChart } from "./charts.js";
import { badge, card, choices, element, link, svg, table } from "./dom.js";
import { counted, duration, json, short, time, timeText } from "./format.js";
import { uPlot } from "./library.js";
import { storePath } from "./store_words.js";

const MOST_KEYS = 6;
const MOST_BARS = 12;
const MOST_SNAPSHOTS = 10;

export const isObject = (data) =>
  data !== null && typeof data === "object" && !Array.isArray(data) && !isExact(data);

// The numbers in a value by field; a value that is a number has the field "".
function numbers(value) {
  const fields = isObject(value) ? Object.entries(value) : [["", value]];
  return fields.filter(([, data]) => isNumber(data)).map(([name, data]) => [name, Number(data)]);
}

// The names of all fields with numbers, in the order in which they first appear.
function fieldsOf(values) {
  const names = new Set();
  for (const value of values) for (const [name] of numbers(value)) names.add(name);
  return [...names];
}

const titleOf = (field) => field || "Value";
const numberIn = (value, field) => numbers(value).find(([name]) => name === field)?.[1];

export async function pictures(info, given, entries) {
  if (info.kind === "window") return entries.length ? windowed(info, given, entries) : null;
  if (given.key !== undefined) return given.history ? history(info, given) : toHistory(info, given);
  return given.cursor || given.as_of ? null : largest(info, given, entries);
}

async function windowed(info, given, entries) {
  const byKey = Map.groupBy(entries, (entry) => entry.key);
  const keys = [...byKey].sort(([, a], [, b]) => b.length - a.length).slice(0, MOST_KEYS);
  const isRegular = info.window_ms !== null;
  if (!isRegular) return sessions(keys);
  const fields = fieldsOf(entries.map(({ value }) => value));
  if (!fields.length) return sessions(keys);
  const library = await uPlot();
  const isOneKey = given.key !== undefined;
  const charts = fields.map((field) => {
    const series = keys.map(([key, own]) => ({
      name: isOneKey ? titleOf(field) : key || "(empty)",
      points: windowPoints(own, field),
    }));
    return pointsChart(library, `${titleOf(field)} by window`, series);
  });
  const label = isOneKey ? `Windows of ${given.key}` : "Windows by key";
  return element("section", { class: "charts", "aria-label": label }, charts);
}

function windowPoints(entries, field) {
  const points = entries.map(({ start, value }) => [Date.parse(start), numberIn(value, field)]);
  return points.filter(([, value]) => value !== undefined);
}

// A row for each key, with a bar from the start to the end of each window.
function sessions(keys) {
  const all = keys.flatMap(([, own]) => own);
  const first = Math.min(...all.map(({ start }) => Date.parse(start)));
  const last = Math.max(...all.map(({ end }) => Date.parse(end)));
  const rows = keys.map(([key, own]) => [
    element("dt", {}, key || "(empty)"),
    element(
      "dd",
      {},
      strip(
        `${counted(own.length, "window")} of ${key}`,
        own.map((entry) => windowBar(entry, first, last)),
      ),
    ),
  ]);
  return card(
    "Windows on a time axis",
    element("dl", { class: "bars" }, rows),
    element("p", { class: "quiet" }, `${timeText(first)} to ${timeText(last)}`),
  );
}

// A picture with one or several bars, as wide as its column.
function strip(label, bars) {
  const size = { width: "100%", height: 18 };
  return svg("svg", { class: "gantt", ...size, role: "img", "aria-label": label }, bars);
}

function windowBar({ start, end, value }, first, last) {
  const [from, to] = [Date.parse(start), Date.parse(end)];
  const share = (ms) => `${((100 * ms) / Math.max(last - first, 1)).toFixed(2)}%`;
  const narrowest = (last - first) / 400;
  const place = { x: share(from - first), width: share(Math.max(to - from, narrowest)) };
  const times = `${timeText(start)} to ${timeText(end)}, ${duration((to - from) / 1000)}`;
  const title = svg("title", {}, `${times}: ${json(value)}`);
  return svg("rect", { class: "bar", ...place, y: 2, height: 14, rx: 2 }, title);
}

async function largest(info, given, entries) {
  const fields = fieldsOf(entries.map(({ value }) => value));
  if (!fields.length) return null;
  const field = fields.includes(given.field) ? given.field : fields[0];
  const request = {
    pipeline: info.pipeline,
    prefix: given.prefix,
    first: given.first,
    last: given.last,
    limit: MOST_BARS,
    field,
  };
  const answer = await getExact(`/stores/${part(info.store)}/top`, request).catch(() => null);
  if (!answer?.entries.length) return null;
  const values = answer.entries.map(({ key, value }) => [key, numberIn(value, field) ?? 0]);
  const top = Math.max(...values.map(([, value]) => Math.abs(value)), 1e-9);
  const path = storePath(info.pipeline, info.store);
  const fieldChoices = fields.map((name) => ({
    href: path + query({ ...given, field: name }),
    text: name,
    isChosen: name === field,
  }));
  const rows = values.map(([key, value]) => [
    element("dt", {}, link(path + query({ key }), key || "(empty)")),
    element("dd", {}, valueBar(key, value, top), element("span", {}, short(value))),
  ]);
  return card(
    field ? `The largest by ${field}` : "The largest values",
    fields.length > 1 && choices("Field", fieldChoices),
    element("dl", { class: "bars" }, rows),
  );
}

function valueBar(key, value, top) {
  const width = `${((100 * Math.abs(value)) / top).toFixed(2)}%`;
  const bar = svg("rect", { class: "bar", x: 0, y: 2, width, height: 14, rx: 2 });
  return strip(`${key}: ${short(value)}`, bar);
}

function toHistory({ pipeline, store }, given) {
  const path = storePath(pipeline, store) + query({ ...given, history: 1 });
  return element("p", {}, link(path, `What this key was in the last ${MOST_SNAPSHOTS} snapshots`));
}

// The values of a key in the last snapshots: a line for each field with numbers, and all values.
async function history(info, given) {
  const past = await valuesOf(info, given.key);
  const known = past.filter(({ value }) => value !== undefined);
  const library = await uPlot();
  // One value is no history.
  const fields = known.length > 1 ? fieldsOf(known.map(({ value }) => value)) : [];
  const charts = fields.map((field) => {
    const points = known.map(({ at, value }) => [Date.parse(at), numberIn(value, field) ?? null]);
    const title = `${titleOf(field)} in the last ${counted(past.length, "snapshot")}`;
    return pointsChart(library, title, [{ name: titleOf(field), points }]);
  });
  const label = `History of ${given.key}`;
  return [
    charts.length > 0 && element("section", { class: "charts", "aria-label": label }, charts),
    card("The newest snapshots", table(HISTORY, past.toReversed(), { label: "Snapshots" })),
  ];
}

const HISTORY = [
  { title: "Snapshot", cell: ({ id }) => element("code", {}, id) },
  { title: "Published", cell: ({ at }) => time(at) },
  { title: "Value", cell: historyValue },
];

// A value, marked if it differs from the previous snapshot's.
function historyValue({ value, before }) {
  const text = value === undefined ? "no entry" : element("code", {}, json(value));
  const isChanged = before !== null && json(before) !== json(value);
  return [text, isChanged && [" ", badge("changed", "behind")]];
}

// The values of a key in the last snapshots, oldest first. `before` is the value in the snapshot
// before; null for the oldest.
async function valuesOf({ pipeline, store }, key) {
  const path = `/pipelines/${part(pipeline)}/snapshots`;
  const snapshots = await get(path, { limit: MOST_SNAPSHOTS });
  const read = async ({ snapshot }) => {
    const request = { pipeline, key, as_of: snapshot.id };
    const answer = await getExact(`/stores/${part(store)}/keys`, request).catch(() => null);
    return { id: snapshot.id, at: snapshot.published_at, value: answer?.entries[0]?.value };
  };
  const past = (await Promise.all(snapshots.map(read))).reverse();
  return past.map((each, index) => ({ ...each, before: index ? past[index - 1].value : null }));
}

// What a store holds, as a picture: windows over time, sessions on a time axis, the largest values as bars, and what a key
// was in the last snapshots.

import { get, getExact, part, query } from "./api.js";
import { pointsChart } from "./charts.js";
import { card, element, link, svg } from "./dom.js";
import { counted, duration, json, short, timeText } from "./format.js";
import { uPlot } from "./library.js";
import { storePath } from "./stores.js";

const MOST_KEYS = 6,
  MOST_BARS = 12,
  MOST_SNAPSHOTS = 10;

export const isObject = (data) =>
  data !== null && typeof data === "object" && !Array.isArray(data) && !isExact(data);
// A number that keeps its digits; see `getExact`.
export const isExact = (data) => data !== null && typeof data === "object" && "source" in data;
const isNumber = (data) => typeof data === "number" || isExact(data);

// The numbers in a value by field; a value that is a number has the field "value".
function numbers(value) {
  const fields = isObject(value) ? Object.entries(value) : [["value", value]];
  return fields.filter(([, data]) => isNumber(data)).map(([name, data]) => [name, Number(data)]);
}

export async function pictures(info, given, entries) {
  if (info.kind === "window") return entries.length ? windowed(info, given, entries) : null;
  if (given.key !== undefined)
    return given.history
      ? history(info, given)
      : element(
          "p",
          {},
          link(
            storePath(info.pipeline, info.store) + query({ ...given, history: 1 }),
            `What this key was in the last ${MOST_SNAPSHOTS} snapshots`,
          ),
        );
  return given.cursor || given.as_of ? null : largest(info, given, entries);
}

async function windowed(info, given, entries) {
  const byKey = Map.groupBy(entries, (entry) => entry.key);
  const keys = [...byKey].sort(([, a], [, b]) => b.length - a.length).slice(0, MOST_KEYS);
  const isRegular = info.window_ms !== null;
  if (!isRegular) return sessions(keys);
  const fields = [
    ...new Set(entries.flatMap((entry) => numbers(entry.value).map(([name]) => name))),
  ];
  if (!fields.length) return sessions(keys);
  const library = await uPlot();
  const points = (own, field) =>
    own
      .map((entry) => [
        Date.parse(entry.start),
        numbers(entry.value).find(([name]) => name === field)?.[1],
      ])
      .filter(([, value]) => value !== undefined);
  return element(
    "section",
    {
      class: "charts",
      "aria-label": given.key === undefined ? "Windows by key" : `Windows of ${given.key}`,
    },
    fields.map((field) =>
      pointsChart(
        library,
        `${field}, by window`,
        keys.map(([key, own]) => ({
          name: given.key === undefined ? key || "(empty)" : field,
          points: points(own, field),
        })),
      ),
    ),
  );
}

// A row for each key, with a bar from the start to the end of each window.
function sessions(keys) {
  const all = keys.flatMap(([, own]) => own);
  const [first, last] = [
    Math.min(...all.map(({ start }) => Date.parse(start))),
    Math.max(...all.map(({ end }) => Date.parse(end))),
  ];
  const share = (ms) => `${((100 * ms) / Math.max(last - first, 1)).toFixed(2)}%`;
  const bars = (own) =>
    own.map((entry) => {
      const [from, to] = [Date.parse(entry.start), Date.parse(entry.end)];
      return svg(
        "rect",
        {
          class: "bar",
          x: share(from - first),
          y: 2,
          width: share(Math.max(to - from, (last - first) / 400)),
          height: 14,
          rx: 2,
        },
        svg(
          "title",
          {},
          `${timeText(entry.start)} to ${timeText(entry.end)}, ${duration((to - from) / 1000)}: ${json(entry.value)}`,
        ),
      );
    });
  return card(
    "Windows on a time axis",
    element(
      "dl",
      { class: "bars" },
      keys.map(([key, own]) => [
        element("dt", {}, key || "(empty)"),
        element(
          "dd",
          {},
          svg(
            "svg",
            {
              class: "gantt",
              width: "100%",
              height: 18,
              role: "img",
              "aria-label": `${counted(own.length, "window")} of ${key}`,
            },
            bars(own),
          ),
        ),
      ]),
    ),
    element("p", { class: "quiet" }, `${timeText(first)} to ${timeText(last)}`),
  );
}

async function largest(info, given, entries) {
  const fields = [
    ...new Set(entries.flatMap((entry) => numbers(entry.value).map(([name]) => name))),
  ];
  if (!fields.length) return null;
  const field = fields.includes(given.field) ? given.field : fields[0];
  const request = {
    pipeline: info.pipeline,
    prefix: given.prefix,
    first: given.first,
    last: given.last,
    limit: MOST_BARS,
    field: field === "value" ? "" : field,
  };
  const answer = await getExact(`/stores/${part(info.store)}/top`, request).catch(() => null);
  if (!answer?.entries.length) return null;
  const values = answer.entries.map((entry) => [
    entry.key,
    numbers(entry.value).find(([name]) => name === field)?.[1] ?? 0,
  ]);
  const top = Math.max(...values.map(([, value]) => Math.abs(value)), 1e-9);
  const path = storePath(info.pipeline, info.store);
  return card(
    `The largest by ${field}`,
    fields.length > 1 &&
      element(
        "nav",
        { class: "choices", "aria-label": "Field" },
        fields.map((name) =>
          element(
            "a",
            {
              class: "choice",
              href: path + query({ ...given, field: name }),
              "aria-current": name === field ? "true" : null,
            },
            name,
          ),
        ),
      ),
    element(
      "dl",
      { class: "bars" },
      values.map(([key, value]) => [
        element("dt", {}, link(path + query({ key }), key || "(empty)")),
        element(
          "dd",
          {},
          svg(
            "svg",
            {
              class: "gantt",
              width: "100%",
              height: 18,
              role: "img",
              "aria-label": `${key}: ${short(value)}`,
            },
            svg("rect", {
              class: "bar",
              x: 0,
              y: 2,
              width: `${((100 * Math.abs(value)) / top).toFixed(2)}%`,
              height: 14,
              rx: 2,
            }),
          ),
          element("span", {}, short(value)),
        ),
      ]),
    ),
  );
}

async function history(info, given) {
  const snapshots = await get(`/pipelines/${part(info.pipeline)}/snapshots`, {
    limit: MOST_SNAPSHOTS,
  });
  const read = async ({ snapshot }) => {
    const answer = await getExact(`/stores/${part(info.store)}/keys`, {
      pipeline: info.pipeline,
      key: given.key,
      as_of: snapshot.id,
    }).catch(() => null);
    return { snapshot, value: answer?.entries[0]?.value };
  };
  const past = (await Promise.all(snapshots.map(read))).reverse();
  const fields = [
    ...new Set(
      past.flatMap(({ value }) =>
        value === undefined ? [] : numbers(value).map(([name]) => name),
      ),
    ),
  ];
  const library = await uPlot();
  const points = (field) =>
    past
      .filter(({ value }) => value !== undefined)
      .map(({ snapshot, value }) => [
        Date.parse(snapshot.published_at),
        numbers(value).find(([name]) => name === field)?.[1] ?? null,
      ]);
  return element(
    "section",
    { class: "charts", "aria-label": `History of ${given.key}` },
    fields.map((field) =>
      pointsChart(library, `${field} in the last ${counted(past.length, "snapshot")}`, [
        { name: field, points: points(field) },
      ]),
    ),
  );
}

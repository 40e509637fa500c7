// The batches of the chosen time as charts: records in and out, unread, freshness, duration, late and
// rejected, state; and what the runs cost.

import { element } from "./dom.js";
import { bytes, duration, short } from "./format.js";
import { timeChart } from "./charts.js";

const NO_RUN = "No run has ended in this time.";

// `samples`: [[epoch ms, unread]], which the page has seen itself.
export function historyCharts(uPlot, past, { count, period, samples, marks, select }) {
  const width = (period.to - period.from) / count;
  const times = Array.from({ length: count }, (_, index) =>
    Math.round(period.from + (index + 0.5) * width),
  );
  const columns = times.map(() => null);
  for (const column of past.columns) columns[column.column] = column;
  const unread = columns.map((column) => (column?.batches ? column.most_records : null));
  for (const [at, value] of samples) {
    const index = Math.min(Math.floor((at - period.from) / width), count - 1);
    if (index >= 0 && at <= period.to + width) unread[index] = Math.max(unread[index] ?? 0, value);
  }
  const rate = (records) =>
    columns.map((column) => (column ? records(column) : 0) / (width / 1000));
  const options = { period, marks, select };
  const perSecond = {
    format: (value) => (value > 0 && value < 1 ? value.toFixed(2) : short(value)),
  };
  const chart = (title, series, more = {}) =>
    timeChart(uPlot, title, times, series, { ...options, ...more });
  return element(
    "section",
    { class: "charts", "aria-label": "Over time" },
    chart(
      "Records per second",
      [
        { name: "in", values: rate(({ records }) => records) },
        { name: "out", values: rate(({ written }) => total(written)) },
      ],
      perSecond,
    ),
    chart("Unread records", [{ name: "unread when a batch began, and now", values: unread }]),
    chart(
      "Freshness, from event to answer",
      [{ name: "freshness", values: columns.map((column) => column?.freshness_seconds ?? null) }],
      { format: duration, empty: "No batch with an event time in this time." },
    ),
    chart(
      "Duration of a batch by phase",
      named(columns, ({ phases }) => phases ?? {}),
      { format: duration, bars: true },
    ),
    chart("Late and rejected records", named(columns, rejected), {
      bars: true,
      empty: "No late or rejected record in this time.",
    }),
    chart(
      "State rows written",
      [{ name: "rows", values: columns.map((column) => (column?.batches ? column.rows : null)) }],
      { bars: true },
    ),
    chart(
      "Size of the state",
      [{ name: "all shards", values: columns.map((column) => column?.state_bytes ?? null) }],
      { format: bytes, empty: NO_RUN },
    ),
    chart(
      "CPU time of runs",
      [
        {
          name: "CPU time",
          values: columns.map((column) => (column?.runs ? (column.cpu_seconds ?? 0) : null)),
        },
      ],
      { format: duration, bars: true, empty: NO_RUN },
    ),
    chart(
      "Memory of a run",
      [{ name: "most memory", values: columns.map((column) => column?.memory_bytes ?? null) }],
      { format: bytes, empty: NO_RUN },
    ),
  );
}

const total = (byName) => Object.values(byName ?? {}).reduce((all, count) => all + count, 0);
const prefixed = (prefix, byName) =>
  Object.fromEntries(Object.entries(byName ?? {}).map(([name, count]) => [prefix + name, count]));
const rejected = ({ late, dropped, dead_letters: letters }) => ({
  ...prefixed("late for ", late),
  ...letters,
  ...prefixed("dropped: ", dropped),
});

function named(columns, values) {
  const byColumn = columns.map((column) => (column?.batches ? values(column) : null));
  const names = [...new Set(byColumn.filter(Boolean).flatMap(Object.keys))].sort();
  return names.map((name) => ({
    name,
    values: byColumn.map((each) => (each ? (each[name] ?? 0) : null)),
  }));
}

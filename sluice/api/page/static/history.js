// The batches of the chosen time as charts: records in and out, unread, freshness, duration, late
// and rejected, state; and what the runs cost.

import { element } from "./dom.js";
import { bytes, duration, short } from "./format.js";
import { timeChart } from "./charts.js";
import { PHASES } from "./phases.js";

const NO_RUN = "No run has ended in this time.";

// `samples`: [[epoch ms, unread]], unread records that the page itself has seen.
export function historyCharts(uPlot, past, { count, period, samples, marks, select }) {
  const width = (period.to - period.from) / count;
  const timeOf = (index) => Math.round(period.from + (index + 0.5) * width);
  const times = Array.from({ length: count }, (_, index) => timeOf(index));
  const columns = times.map(() => null);
  for (const column of past.columns) columns[column.column] = column;
  const chart = (title, series, more = {}) =>
    timeChart(uPlot, title, times, series, { period, marks, select, ...more });
  const line = (name, valueOf) => [{ name, values: columns.map(valueOf) }];
  const perSecond = (records) => (column) => (column ? records(column) : 0) / (width / 1000);
  const unread = unreadIn(columns, samples, period);
  return element(
    "section",
    { class: "charts", "aria-label": "Over time" },
    chart(
      "Records per second",
      [
        ...line(
          "in",
          perSecond(({ records }) => records),
        ),
        ...line(
          "out",
          perSecond(({ written }) => total(written)),
        ),
      ],
      { format: rate },
    ),
    chart("Unread records", [{ name: "unread when a batch began, and now", values: unread }]),
    chart(
      "Freshness, from event to answer",
      line("freshness", (column) => column?.freshness_seconds ?? null),
      { format: duration, empty: "No batch with an event time in this time." },
    ),
    chart("Duration of a batch by phase", named(columns, phasesOf), {
      format: duration,
      bars: true,
    }),
    chart("Late and rejected records", named(columns, rejected), {
      bars: true,
      empty: "No late or rejected records in this time.",
    }),
    chart(
      "State rows written",
      line("rows", (column) => (column?.batches ? column.rows : null)),
      { bars: true },
    ),
    chart(
      "Size of the state",
      line("all shards", (column) => column?.state_bytes ?? null),
      { format: bytes, empty: NO_RUN },
    ),
    chart("CPU time of runs", line("CPU time", cpuTime), {
      format: duration,
      bars: true,
      empty: NO_RUN,
    }),
    chart(
      "Memory of a run",
      line("most memory", (column) => column?.memory_bytes ?? null),
      { format: bytes, empty: NO_RUN },
    ),
  );
}

// The unread records of each column: counted when a batch began, or by the page itself.
function unreadIn(columns, samples, { from, to }) {
  const width = (to - from) / columns.length;
  const unread = columns.map((column) => (column?.batches ? column.most_records : null));
  for (const [at, value] of samples) {
    const index = Math.min(Math.floor((at - from) / width), columns.length - 1);
    if (index >= 0 && at <= to + width) unread[index] = Math.max(unread[index] ?? 0, value);
  }
  return unread;
}

const rate = (value) => (value > 0 && value < 1 ? value.toFixed(2) : short(value));

function cpuTime(column) {
  return column?.runs ? (column.cpu_seconds ?? 0) : null;
}

function phasesOf({ phases }) {
  const all = Object.entries(phases ?? {});
  return Object.fromEntries(all.map(([phase, seconds]) => [PHASES[phase] ?? phase, seconds]));
}

const total = (byName) => Object.values(byName ?? {}).reduce((all, count) => all + count, 0);

function prefixed(prefix, byName) {
  const entries = Object.entries(byName ?? {});
  return Object.fromEntries(entries.map(([name, count]) => [prefix + name, count]));
}

const rejected = ({ late, dropped, dead_letters: letters }) => ({
  ...prefixed("late for ", late),
  ...letters,
  ...prefixed("dropped: ", dropped),
});

// A series for each name in the values of the columns; null in a column without a batch.
function named(columns, valuesOf) {
  const byColumn = columns.map((column) => (column?.batches ? valuesOf(column) : null));
  const known = byColumn.filter((values) => values !== null);
  const names = [...new Set(known.flatMap(Object.keys))].sort();
  const valueIn = (values, name) => (values === null ? null : (values[name] ?? 0));
  return names.map((name) => ({ name, values: byColumn.map((values) => valueIn(values, name)) }));
}

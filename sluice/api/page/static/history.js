// The batches of the chosen time as charts: records in and out, unread, freshness, duration, late and rejected, state.

import { element } from "./dom.js";
import { duration, short } from "./format.js";
import { timeChart } from "./charts.js";

const COLUMNS = 120;

// `samples`: [[epoch ms, unread]], which the page has seen itself.
export function historyCharts(uPlot, batches, { period, samples, marks, select }) {
  const width = (period.to - period.from) / COLUMNS;
  const times = Array.from({ length: COLUMNS }, (_, index) => Math.round(period.from + (index + 0.5) * width));
  const columns = times.map(() => []);
  for (const batch of batches) columnOf(columns, period, width, Date.parse(batch.published_at))?.push(batch);
  const unread = times.map(() => null);
  const keepMost = (at, value) => {
    const index = Math.floor((at - period.from) / width);
    if (index >= 0 && index < COLUMNS) unread[index] = Math.max(unread[index] ?? 0, value);
  };
  for (const batch of batches) if (batch.seconds !== null) keepMost(Date.parse(batch.published_at) - batch.seconds * 1000, batch.records);
  for (const [at, value] of samples) keepMost(at, value);
  const rate = (count) => columns.map((column) => sum(column, count) / (width / 1000));
  const options = { period, marks, select };
  const perSecond = { ...options, format: (value) => (value > 0 && value < 1 ? value.toFixed(2) : short(value)) };
  const chart = (title, series, more = {}) => timeChart(uPlot, title, times, series, { ...options, ...more });
  return element("section", { class: "charts", "aria-label": "Over time" },
    chart("Records per second", [{ name: "in", values: rate((batch) => batch.records) }, { name: "out", values: rate((batch) => total(batch.written)) }], perSecond),
    chart("Unread records", [{ name: "unread when a batch began, and now", values: unread }]),
    chart("Freshness, from event to answer", [{ name: "freshness", values: columns.map(freshness) }], { format: duration, empty: "No batch with an event time in this time." }),
    chart("Duration of a batch by phase", phases(columns), { format: duration, bars: true }),
    chart("Late and rejected records", named(columns, (batch) => ({ ...prefixed("late for ", batch.late), ...batch.dead_letters, ...prefixed("dropped: ", batch.dropped) })), { bars: true, empty: "No late or rejected record in this time." }),
    chart("State rows written", [{ name: "rows", values: columns.map((column) => (column.length ? sum(column, (batch) => batch.rows) : null)) }], { bars: true }));
}

function columnOf(columns, period, width, at) {
  return columns[Math.min(Math.floor((at - period.from) / width), at <= period.to + width ? columns.length - 1 : columns.length)];
}

const sum = (batches, count) => batches.reduce((all, batch) => all + count(batch), 0);
const total = (byName) => Object.values(byName).reduce((all, count) => all + count, 0);
const prefixed = (prefix, byName) => Object.fromEntries(Object.entries(byName).map(([name, count]) => [prefix + name, count]));

function freshness(column) {
  const waits = column.filter((batch) => batch.newest_event).map((batch) => (Date.parse(batch.published_at) - Date.parse(batch.newest_event)) / 1000);
  return waits.length ? Math.max(...waits, 0) : null;
}

// The mean duration of each phase.
function phases(columns) {
  const names = [...new Set(columns.flat().flatMap((batch) => Object.keys(batch.phases)))];
  return names.map((name) => ({ name, values: columns.map((column) => {
    const timed = column.filter((batch) => batch.seconds !== null);
    return timed.length ? sum(timed, (batch) => batch.phases[name] ?? 0) / timed.length : null;
  }) }));
}

function named(columns, counts) {
  const byColumn = columns.map((column) => column.map(counts));
  const names = [...new Set(byColumn.flat().flatMap(Object.keys))].sort();
  return names.map((name) => ({ name, values: byColumn.map((column) => (column.length ? column.reduce((all, each) => all + (each[name] ?? 0), 0) : null)) }));
}

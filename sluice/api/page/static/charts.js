// Charts over time, drawn by uPlot. All charts of a page share their time, and the place of the pointer.

import { element } from "./dom.js";
import { bytes, duration, short, timeText } from "./format.js";

const HEIGHT = 170;
const COLOURS = 6;
const DAY_MS = 86_400_000;
// The steps between the values of an axis, so that durations and sizes are round in their own units.
const STEPS = new Map([
  [
    duration,
    [
      0.01,
      0.02,
      0.05,
      0.1,
      0.2,
      0.5,
      1,
      2,
      5,
      10,
      15,
      30,
      60,
      120,
      300,
      600,
      900,
      1_800,
      3_600,
      7_200,
      14_400,
      28_800,
      ...Array.from({ length: 12 }, (_, power) => (DAY_MS / 1_000) * 2 ** power),
    ],
  ],
  [bytes, Array.from({ length: 45 }, (_, power) => 2 ** power)],
]);

// One chart. `series`: [{ name, values }] with a value or null for each of `times` (epoch ms). null is a gap.
// `bars` stacks the series. `marks`: [{ at, text, isFailure }] are vertical lines. `select` is called with the times of a drag.
export function timeChart(
  uPlot,
  title,
  times,
  series,
  {
    period,
    format = short,
    bars = false,
    marks = [],
    select = null,
    empty = "Nothing in this time.",
  },
) {
  const drawn = series.filter(({ values }) =>
    values.some((value) => value !== null && value !== 0),
  );
  const shown = drawn.length ? drawn : series.slice(0, 1);
  const isEmpty = !shown.some(({ values }) => values.some((value) => value !== null));
  const figure = element("figure", { class: "chart" }, element("figcaption", {}, title));
  if (isEmpty) {
    figure.append(element("p", { class: "quiet" }, empty));
    return figure;
  }
  const place = element("div", {
    class: "plot",
    role: "img",
    "aria-label": summary(title, shown, format),
  });
  figure.append(place);
  if (shown.length > 1)
    figure.append(
      element(
        "ul",
        { class: "legend" },
        shown.map(({ name }, index) => element("li", { class: `series-${index % COLOURS}` }, name)),
      ),
    );
  let plot = null;
  // The chart is drawn once it is on the page, because its width is unknown before.
  new ResizeObserver(
    ([
      {
        contentRect: { width },
      },
    ]) => {
      if (!width) return;
      if (plot) plot.setSize({ width, height: HEIGHT });
      else plot = draw(uPlot, place, width, times, shown, { period, format, bars, marks, select });
    },
  ).observe(place);
  return figure;
}

function draw(uPlot, place, width, times, series, { period, format, bars, marks, select }) {
  const style = getComputedStyle(place);
  const colour = (name) => style.getPropertyValue(name).trim();
  const stacked = bars ? stack(series) : series.map(({ values }) => values);
  const columns = series.map((_, index) => index);
  // The highest column of a stack is drawn first, so that the lower ones cover its lower part.
  if (bars) columns.reverse();
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const tip = element("div", { class: "tip", hidden: true });
  const options = {
    width,
    height: HEIGHT,
    ms: 1,
    legend: { show: false },
    cursor: {
      sync: { key: "time" },
      drag: { x: Boolean(select), y: false, setScale: false },
      points: { size: 6 },
    },
    scales: {
      x: { time: true, range: [period.from, period.to] },
      y: { range: (_, _low, high) => [0, high > 0 ? high * 1.08 : 1] },
    },
    axes: [
      { ...axis, space: 64, size: 30, values: (_, splits) => labels(splits) },
      {
        ...axis,
        size: (_, texts) => widthOf(texts),
        ...(STEPS.has(format) ? { incrs: STEPS.get(format) } : {}),
        values: (_, splits) => splits.map((value) => (value === null ? "" : format(value))),
      },
    ],
    series: [
      {},
      ...columns.map((index) => ({
        label: series[index].name,
        stroke: colour(`--c${index % COLOURS}`),
        fill: bars ? colour(`--c${index % COLOURS}`) : undefined,
        width: bars ? 0 : 2,
        spanGaps: false,
        points: { show: bars ? false : (_, number) => isAlone(stacked[index], number), size: 5 },
        ...(bars ? { paths: uPlot.paths.bars({ size: [0.85, 14, 2] }) } : {}),
      })),
    ],
    hooks: {
      draw: [
        (plot) => drawMarks(plot, marks, { failure: colour("--bad"), change: colour("--link") }),
      ],
      setCursor: [(plot) => showTip(plot, tip, times, series, marks, format)],
      setSelect: [
        (plot) => {
          if (select && plot.select.width > 8)
            select(
              Math.round(plot.posToVal(plot.select.left, "x")),
              Math.round(plot.posToVal(plot.select.left + plot.select.width, "x")),
            );
        },
      ],
    },
  };
  const plot = new uPlot(options, [times, ...columns.map((index) => stacked[index])], place);
  plot.over.append(tip);
  return plot;
}

// uPlot draws points of a line only where a value has no neighbours.
function isAlone(values) {
  return values.some(
    (value, index) =>
      value !== null &&
      (values[index - 1] ?? null) === null &&
      (values[index + 1] ?? null) === null,
  );
}

function stack(series) {
  let below = series[0].values.map(() => 0);
  return series.map(({ values }) => {
    below = values.map((value, index) => (value ?? 0) + below[index]);
    return below.map((sum, index) => (values[index] === null && sum === 0 ? null : sum));
  });
}

const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const second = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const widthOf = (texts) => 16 + 6.5 * Math.max(6, ...(texts ?? []).map((text) => text.length));

function labels(splits) {
  if (splits.length > 1 && splits[1] - splits[0] >= DAY_MS)
    return splits.map((at) => date.format(at));
  const clock = splits.length > 1 && splits[1] - splits[0] < 60_000 ? second : hour;
  return splits.map((at, index) => {
    const before = splits[index - 1];
    const isNewDay = index > 0 && new Date(before).toDateString() !== new Date(at).toDateString();
    return isNewDay ? date.format(at) : clock.format(at);
  });
}

function drawMarks(plot, marks, colours) {
  const { left, top, width, height } = plot.bbox;
  for (const { at, isFailure } of marks) {
    const x = plot.valToPos(at, "x", true);
    if (x < left || x > left + width) continue;
    plot.ctx.save();
    plot.ctx.strokeStyle = isFailure ? colours.failure : colours.change;
    plot.ctx.setLineDash([4, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }
}

function showTip(plot, tip, times, series, marks, format) {
  const { idx, left } = plot.cursor;
  tip.hidden = idx === null || idx === undefined || left < 0;
  if (tip.hidden) return;
  const rows = series
    .filter(({ values }) => values[idx] !== null)
    .map(({ name, values }) => element("div", {}, `${name}: ${format(values[idx])}`));
  const width = times.length > 1 ? times[1] - times[0] : 0;
  const near = marks
    .filter(({ at }) => Math.abs(at - times[idx]) <= width)
    .map(({ text }) => element("div", { class: "mark" }, text));
  tip.replaceChildren(
    element("b", {}, timeText(times[idx])),
    ...(rows.length ? rows : [element("div", {}, "no batch")]),
    ...near,
  );
  const isRight = left > plot.over.clientWidth / 2;
  tip.style.left = isRight ? "" : `${left + 12}px`;
  tip.style.right = isRight ? `${plot.over.clientWidth - left + 12}px` : "";
}

function summary(title, series, format) {
  const texts = series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return `${name}: no values`;
    return `${name}: last ${format(known.at(-1))}, from ${format(Math.min(...known))} to ${format(Math.max(...known))}`;
  });
  return `${title}. ${texts.join("; ")}`;
}

// A chart of points: `series` is [{ name, points: [[epoch ms, value]] }]. Its time is that of the points.
export function pointsChart(uPlot, title, series, { format = short, bars = false } = {}) {
  const times = [...new Set(series.flatMap(({ points }) => points.map(([at]) => at)))].sort(
    (a, b) => a - b,
  );
  const values = series.map(({ name, points }) => {
    const byTime = new Map(points);
    return { name, values: times.map((at) => byTime.get(at) ?? null) };
  });
  const margin = times.length > 1 ? (times.at(-1) - times[0]) / times.length / 2 : 60_000;
  return timeChart(uPlot, title, times, values, {
    period: { from: times[0] - margin, to: times.at(-1) + margin },
    format,
    bars,
    empty: "Nothing yet.",
  });
}

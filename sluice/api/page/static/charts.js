// Charts over time, drawn by uPlot. All charts of a page show the same period, and share the
// pointer's position.

import { element } from "./dom.js";
import { bytes, duration, short, timeText } from "./format.js";

const HEIGHT = 170;
const COLOURS = 6;
const SHORTEST_DRAG = 8; // in pixels
const LABEL_WIDTH = 64; // the least space for a label of the axis of times, in pixels
const DAY_MS = 86_400_000;
const powersOfTwo = (count) => Array.from({ length: count }, (_, power) => 2 ** power);
const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];
const MINUTES_AND_HOURS = [60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800];
const DAYS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000].map((days) => days * 86_400);
// The steps between the labels of an axis: round numbers of seconds, minutes, hours, KiB and so on.
const STEPS = new Map([
  [duration, [...SECONDS, ...MINUTES_AND_HOURS, ...DAYS]],
  [bytes, powersOfTwo(45)],
]);

// One chart. `series`: [{ name, values }] with a value or null for each of `times` (epoch ms).
// null is a gap. `bars` stacks the series. `marks`: [{ at, text, isFailure }] are vertical lines.
// `select` is called with the times of a drag. `daily`: each time is the middle of a day in UTC.
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
    daily = false,
    empty = "Nothing in this time.",
  },
) {
  const has = ({ values }, isWanted) => values.some((value) => value !== null && isWanted(value));
  const drawn = series.filter((each) => has(each, (value) => value !== 0));
  const shown = drawn.length ? drawn : series.slice(0, 1);
  const isEmpty = !shown.some((each) => has(each, () => true));
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
  if (shown.length > 1) figure.append(legend(shown));
  const looks = { period, format, bars, marks, select, daily };
  let plot = null;
  // The chart is drawn once it is on the page, because its width is unknown before.
  const observer = new ResizeObserver(([{ contentRect }]) => {
    const { width } = contentRect;
    if (!width) return;
    if (plot) plot.setSize({ width, height: HEIGHT });
    else plot = draw(uPlot, place, width, times, shown, looks);
  });
  observer.observe(place);
  return figure;
}

function legend(series) {
  const items = series.map(({ name }, index) =>
    element("li", { class: `series-${index % COLOURS}` }, name),
  );
  return element("ul", { class: "legend" }, items);
}

function draw(uPlot, place, width, times, series, looks) {
  const { period, format, bars, marks, select, daily } = looks;
  const style = getComputedStyle(place);
  const colour = (name) => style.getPropertyValue(name).trim();
  const stacked = bars ? stack(series) : series.map(({ values }) => values);
  const columns = series.map((_, index) => index);
  // The highest column of a stack is drawn first, so that the lower ones cover its lower part.
  if (bars) columns.reverse();
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
      // uPlot puts the labels of a time with a fraction of a millisecond at the wrong second.
      x: { time: true, range: [Math.round(period.from), Math.round(period.to)] },
      y: { range: (_, _low, high) => [0, high > 0 ? high * 1.08 : 1] },
    },
    axes: axes(colour, format, daily ? daysOf(times, width) : null),
    series: [
      {},
      ...columns.map((index) => {
        const look = colour(`--c${index % COLOURS}`);
        const label = series[index].name;
        if (bars) return barsOf(uPlot, label, look);
        return lineOf(label, look, colour("--card"), stacked[index]);
      }),
    ],
    hooks: {
      draw: [
        (plot) => drawMarks(plot, marks, { failure: colour("--bad"), change: colour("--link") }),
      ],
      setCursor: [(plot) => showTip(plot, tip, times, series, looks)],
      setSelect: [(plot) => chooseTime(plot, select)],
    },
  };
  const plot = new uPlot(options, [times, ...columns.map((index) => stacked[index])], place);
  plot.over.append(tip);
  return plot;
}

// `days`: the days with a label on the axis; null if the axis has times.
function axes(colour, format, days) {
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const texts = (splits) => splits.map((value) => (value === null ? "" : format(value)));
  const values = { ...axis, size: (_, all) => widthOf(all), values: (_, splits) => texts(splits) };
  if (STEPS.has(format)) values.incrs = STEPS.get(format);
  const ofTimes = { values: (_, splits) => labels(splits) };
  const ofDays = { splits: () => days, values: (_, splits) => splits.map(dayText) };
  return [{ ...axis, space: LABEL_WIDTH, size: 30, ...(days ? ofDays : ofTimes) }, values];
}

// Every day, or every second one and so on, so that each label has its place.
function daysOf(times, width) {
  const step = Math.ceil((times.length * LABEL_WIDTH) / width);
  return times.filter((_, index) => index % step === 0);
}

function barsOf(uPlot, label, colour) {
  const paths = uPlot.paths.bars({ size: [0.85, 14, 2] });
  return { label, stroke: colour, fill: colour, width: 0, points: { show: false }, paths };
}

function lineOf(label, colour, fill, values) {
  const points = { show: hasLoneValue(values), size: 5, fill };
  return { label, stroke: colour, width: 2, spanGaps: false, points };
}

// A value without neighbours is no line, so such a series is drawn with points.
function hasLoneValue(values) {
  const isGap = (index) => (values[index] ?? null) === null;
  return values.some((_, index) => !isGap(index) && isGap(index - 1) && isGap(index + 1));
}

function chooseTime(plot, select) {
  const { left, width } = plot.select;
  if (!select || width <= SHORTEST_DRAG) return;
  const at = (place) => Math.round(plot.posToVal(place, "x"));
  select(at(left), at(left + width));
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
const dayInUtc = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  timeZone: "UTC",
});
const dayText = (at) => dayInUtc.format(at);

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

function showTip(plot, tip, times, series, { marks, format, daily }) {
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
    element("b", {}, daily ? dayText(times[idx]) : timeText(times[idx])),
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
    const [last, least, most] = [known.at(-1), Math.min(...known), Math.max(...known)].map(format);
    return `${name}: last ${last}, from ${least} to ${most}`;
  });
  return `${title}. ${texts.join("; ")}`;
}

// A chart of points: `series` is [{ name, points: [[epoch ms, value]] }]. The time axis covers the
// points.
export function pointsChart(uPlot, title, series, { format = short, bars = false } = {}) {
  const all = series.flatMap(({ points }) => points);
  const times = [...new Set(all.map(([at]) => at))].sort((a, b) => a - b);
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

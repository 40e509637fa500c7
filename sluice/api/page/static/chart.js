// Charts as SVG. Each has a text that says the same as the picture, for screen readers.

import { element, svg } from "./dom.js";
import { short } from "./format.js";

const HEIGHT = 150, LEFT = 70, RIGHT = 10, TOP = 10, BOTTOM = 22;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// series: [{ name, points: [[epoch ms, value]] }]; format turns a value into text. `bars` stacks the series.
export function chart(title, series, { format = short, bars = false } = {}) {
  const shown = series.filter(({ points }) => points.length);
  const times = [...new Set(shown.flatMap(({ points }) => points.map(([at]) => at)))].sort((a, b) => a - b);
  const figure = element("figure", { class: "chart" }, element("figcaption", {}, title));
  if (!times.length) {
    figure.append(element("p", { class: "quiet" }, "Nothing yet."));
    return figure;
  }
  const width = 420;
  const stacked = bars ? stack(shown, times) : null;
  const highest = Math.max(...(bars ? stacked.map(({ sum }) => sum) : shown.flatMap(({ points }) => points.map(([, value]) => value))), 0);
  const top = highest || 1;
  const [first, last] = [times[0], times.at(-1)];
  const x = (at) => LEFT + (last === first ? 0.5 : (at - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const label = last - first > 86_400_000 ? day : clock;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary(title, shown, format) },
    [0, top / 2, top].map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "axis", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    ]),
    svg("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, label.format(first)),
    last > first && svg("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, label.format(last)),
    bars ? stacked.map((column) => bar(column, shown, x, y, width, times.length, format, label)) : shown.map((curve, number) => line(curve, number, x, y, format, label)));
  figure.append(picture);
  if (shown.length > 1) figure.append(element("ul", { class: "legend" }, shown.map(({ name }, number) => element("li", { class: `series-${number % 6}` }, name))));
  return figure;
}

function line({ name, points }, number, x, y, format, label) {
  const path = points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return svg("g", { class: `series-${number % 6}` },
    svg("path", { class: "line", d: path }),
    points.map(([at, value]) => svg("circle", { cx: x(at).toFixed(1), cy: y(value).toFixed(1), r: points.length > 60 ? 1.5 : 3 },
      svg("title", {}, `${name}: ${format(value)}, ${label.format(at)}`))));
}

function stack(series, times) {
  const values = series.map(({ points }) => {
    const sums = new Map();
    for (const [at, value] of points) sums.set(at, (sums.get(at) ?? 0) + value);
    return sums;
  });
  return times.map((at) => ({ at, values: values.map((sums) => sums.get(at) ?? 0), sum: values.reduce((sum, sums) => sum + (sums.get(at) ?? 0), 0) }));
}

function bar({ at, values }, series, x, y, width, count, format, label) {
  const wide = Math.max(Math.min(18, (width - LEFT - RIGHT) / count - 1), 1.5);
  let below = 0;
  return values.map((value, number) => {
    const [low, high] = [y(below), y(below + value)];
    below += value;
    return value > 0 && svg("g", { class: `series-${number % 6}` },
      svg("rect", { class: "bar", x: (Math.min(Math.max(x(at) - wide / 2, LEFT), width - RIGHT - wide)).toFixed(1), y: high.toFixed(1), width: wide.toFixed(1), height: Math.max(low - high, 1).toFixed(1) },
        svg("title", {}, `${series[number].name}: ${format(value)}, ${label.format(at)}`)));
  });
}

function summary(title, series, format) {
  const texts = series.map(({ name, points }) => {
    const values = points.map(([, value]) => value);
    return `${name}: last ${format(values.at(-1))}, from ${format(Math.min(...values))} to ${format(Math.max(...values))}`;
  });
  return `${title}. ${texts.join("; ")}`;
}

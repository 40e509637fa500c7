// The time that the charts, the topology's numbers and the runs show. It is in the address:
// ?range=day, or ?from=…&to=….

import { query } from "./api.js";
import { choices, element } from "./dom.js";
import { timeText } from "./format.js";

const LATEST = Date.UTC(9999, 0); // later times have more digits than the API accepts
const RANGES = { hour: 3_600_000, day: 86_400_000, week: 604_800_000 };

// The chosen period: { from, to } in epoch ms, and a `text` to use in sentences.
// `usual` is the range if none is chosen.
export function periodOf(search, usual = "day") {
  const [from, to] = [Number(search.get("from")), Number(search.get("to"))];
  if (from > 0 && to > from && to < LATEST)
    return { from, to, text: `from ${timeText(from)} to ${timeText(to)}`, range: null };
  const range = RANGES[search.get("range")] ? search.get("range") : usual;
  const now = Date.now();
  return { from: now - RANGES[range], to: now, text: `in the last ${words(range)}`, range };
}

const words = (range) => (range === "day" ? "24 hours" : range);

// The same address with other parameters of the time.
export function withPeriod(search, period) {
  const { from: _from, to: _to, range: _range, ...rest } = Object.fromEntries(search);
  return query({ ...rest, ...period });
}

export function periodChoice(path, search, period) {
  const ranges = Object.keys(RANGES).map((range) => ({
    href: path + withPeriod(search, { range }),
    text: `Last ${words(range)}`,
    isChosen: period.range === range,
  }));
  if (period.range) return choices("Time", ranges);
  const dragged = `${timeText(period.from)} to ${timeText(period.to)}`;
  return choices(
    "Time",
    ranges,
    element("span", { class: "choice", "aria-current": "true" }, dragged),
  );
}

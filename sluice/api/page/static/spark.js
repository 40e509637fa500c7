// A small chart without axes, for a line of a table.

import { svg } from "./dom.js";
import { short } from "./format.js";

const STEP = 4; // from a bar to the next one, in pixels
const HEIGHT = 24;

// The records of the newest batches, as bars.
export function spark(values) {
  if (!values.length) return null;
  const top = Math.max(...values, 1);
  const width = values.length * STEP;
  const text = textOf(values);
  const bars = values.map((value, index) => {
    const high = Math.max((value / top) * (HEIGHT - 2), 1);
    return svg("rect", {
      x: index * STEP,
      y: (HEIGHT - high).toFixed(1),
      width: STEP - 1,
      height: high.toFixed(1),
    });
  });
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${HEIGHT}`,
      width,
      height: HEIGHT,
      role: "img",
      "aria-label": text,
    },
    svg("title", {}, text),
    bars,
  );
}

function textOf(values) {
  if (values.length === 1) return `${short(values[0])} records in the only batch`;
  const [least, most] = [Math.min(...values), Math.max(...values)].map(short);
  const range = `${least} to ${most}, last ${short(values.at(-1))}`;
  return `Records of the newest ${values.length} batches: ${range}`;
}

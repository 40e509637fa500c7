// A pipeline's topology. Its SVG is read as data and drawn anew, so that nothing in it can run, in the page's colours.

import { element, svg } from "./dom.js";
import { number } from "./format.js";

const NUMBER = /^-?\d+(\.\d+)?$/;
const CURVE = /^M(-?\d+) (-?\d+) C-?\d+ -?\d+ -?\d+ -?\d+ (-?\d+) (-?\d+)$/;

// counts: title of a box, such as "stream orders" → { text, title } to show on the arrow at the box.
export function drawing(name, text, counts) {
  const source = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  const size = ["width", "height"].map((side) => Number(source.getAttribute(side)));
  const boxes = [...source.querySelectorAll("g")].map(box).filter(Boolean);
  if (!boxes.length || !size.every((side) => side > 0 && side < 100_000)) return null;
  const arrows = [...source.querySelectorAll("path")].map((path) => CURVE.exec(path.getAttribute("d") ?? "")).filter(Boolean);
  const drawn = svg("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, width: size[0], height: size[1], role: "img", "aria-label": `Topology of ${name}` },
    arrows.map((arrow) => svg("path", { class: "arrow", d: arrow[0] })),
    boxes.map((shape) => svg("g", { class: `box ${shape.kind}` },
      svg("title", {}, shape.title),
      svg("rect", { x: shape.x, y: shape.y, width: shape.width, height: shape.height, rx: 8 }),
      shape.texts.map(({ x, y, text: label }, line) => svg("text", { x, y, class: line ? "detail" : "name" }, label)))),
    boxes.map((shape) => count(shape, counts.get(shape.name))));
  return element("div", { class: "drawing", tabindex: 0, role: "region", "aria-label": `Topology of ${name}, to scroll` }, drawn);
}

function box(group) {
  const rect = group.querySelector("rect");
  const place = rect && Object.fromEntries(["x", "y", "width", "height"].map((side) => [side, rect.getAttribute(side) ?? ""]));
  if (!place || !Object.values(place).every((value) => NUMBER.test(value))) return null;
  const texts = [...group.querySelectorAll("text")]
    .map((node) => ({ x: node.getAttribute("x") ?? "", y: node.getAttribute("y") ?? "", text: node.textContent ?? "" }))
    .filter(({ x, y }) => NUMBER.test(x) && NUMBER.test(y));
  const title = group.querySelector("title")?.textContent ?? "";
  const name = title.split(": ")[0];
  const kind = /^(stream|table|global table) /.test(name) ? "source" : name.startsWith("store ") ? "store" : name.startsWith("topic ") ? "sink" : "step";
  return { ...Object.fromEntries(Object.entries(place).map(([side, value]) => [side, Number(value)])), texts, title, name, kind };
}

// A source's count is on the arrow that leaves it; that of a store or a topic on the arrow that enters it.
function count(box, shown) {
  if (!shown) return null;
  const leaves = box.kind === "source";
  const x = leaves ? box.x + box.width + 4 : box.x - 4;
  return svg("g", { class: "count" }, svg("title", {}, shown.title),
    svg("text", { x, y: box.y + box.height / 2 - 6, "text-anchor": leaves ? "start" : "end" }, shown.text));
}

// The counts of batches, for the boxes of a drawing.
export function countsOf(batches) {
  const sums = new Map();
  const add = (name, value) => sums.set(name, (sums.get(name) ?? 0) + value);
  for (const batch of batches) {
    for (const [topic, value] of Object.entries(batch.read)) for (const kind of ["stream", "table", "global table"]) add(`${kind} ${topic}`, value);
    for (const [topic, value] of Object.entries(batch.written)) add(`topic ${topic}`, value);
    for (const [store, value] of Object.entries(batch.late)) add(`late ${store}`, value);
  }
  const counts = new Map();
  for (const [name, value] of sums) {
    if (name.startsWith("late ")) counts.set(`store ${name.slice(5)}`, { text: `${number(value)} late`, title: `${number(value)} records were too late` });
    else counts.set(name, { text: number(value), title: `${number(value)} records` });
  }
  return counts;
}

// Draws a topology: a picture to pan and zoom on wide screens, and a list from top to bottom on
// narrow ones.
//
// `sluice describe --html` puts this module into its page, so the module imports only the layout.
// Names and expressions come from authors, so they go in as text, never as markup.

import { best, LINE, PADDING, route } from "./graph_layout.js";

const SVG = "http://www.w3.org/2000/svg";
const MANY = 24; // drawings with at least this many nodes have a small map

const make =
  (namespace) =>
  (tag, attributes = {}, ...content) => {
    const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (isAbsent(value)) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, String(value));
    }
    node.append(...content.flat(3).filter((part) => !isAbsent(part)));
    return node;
  };
const isAbsent = (part) => part === null || part === undefined || part === false;
const html = make(null);
const svg = make(SVG);

// The nodes of a topology, from the groups of Sluice's SVG: { number, inputs, name, at, title,
// detail, kind }.
export function readGraph(text) {
  const source = new DOMParser().parseFromString(text, "image/svg+xml");
  return [...source.querySelectorAll("g[data-number]")].map((group) => {
    const full = group.querySelector("title")?.textContent ?? "";
    const cut = full.indexOf(": ");
    const title = cut < 0 ? full : full.slice(0, cut);
    const inputs = (group.dataset?.inputs ?? group.getAttribute("data-inputs"))
      .split(" ")
      .filter(Boolean)
      .map(Number);
    return {
      number: Number(group.getAttribute("data-number")),
      inputs,
      title,
      detail: cut < 0 ? "" : full.slice(cut + 2),
      name: group.getAttribute("data-name") ?? "",
      at: group.getAttribute("data-at") ?? "",
      kind: kindOf(title, inputs),
    };
  });
}

function kindOf(title, inputs) {
  if (!inputs.length) return "source";
  if (title.startsWith("store ")) return "store";
  return /^(topic|table) /.test(title) ? "sink" : "step";
}

const views = new Map(); // name → the part of the drawing that was last seen
const FIELD = { width: 1180, height: 540 };
const LOWEST = 160; // of a drawing, in pixels

// Options by a node's number: `links` (an address), `counts` (a text and a title beside the node),
// `failing` (a set), `chosen`. `flows`: "from to" → a text and a title on an edge.
export function drawGraph(name, nodes, dagre, options = {}) {
  const { links = new Map(), counts = new Map(), flows = new Map() } = options;
  const { failing = new Set(), chosen = null } = options;
  const looks = { links, counts, flows, failing, chosen };
  const graph = best(nodes, dagre, FIELD.width, FIELD.height);
  const { width, height } = graph.graph();
  const picture = svg(
    "svg",
    { role: "group", "aria-label": `Topology of ${name}`, preserveAspectRatio: "xMidYMid meet" },
    tip(),
    graph.edges().map((edge) => arrow(graph, edge)),
    // No edge crosses a number, because all numbers are drawn after all edges.
    graph.edges().map((edge) => count(graph, edge, looks)),
    nodes.map((node) => box(graph.node(node.number), node, looks)),
  );
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.style.maxHeight = `${Math.max(Math.min(height, FIELD.height), LOWEST)}px`;
  const map = nodes.length >= MANY ? smallMap(graph) : null;
  const viewport = new Viewport(name, picture, { x: 0, y: 0, width, height }, map);
  return html("div", { class: "graph" }, frame(name, viewport), list(nodes, looks));
}

function tip() {
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7 };
  const shape = svg("path", { class: "tip", d: "M0 0L8 4L0 8z" });
  return svg("defs", {}, svg("marker", { id: "graph-tip", ...size, orient: "auto" }, shape));
}

function arrow(graph, edge) {
  const { path } = route(graph, edge);
  return svg("path", { class: "arrow", d: path, "marker-end": "url(#graph-tip)" });
}

// The number of records at an edge; null if they are not counted there.
function count(graph, edge, { flows }) {
  const flow = flows.get(`${edge.v} ${edge.w}`);
  if (!flow) return null;
  const { x, y, anchor } = route(graph, edge).count;
  const place = { class: "flow", x, y, "text-anchor": anchor };
  return svg("text", place, svg("title", {}, flow.title), flow.text);
}

function classOf(node, { failing, chosen }) {
  const names = ["box", node.kind];
  if (failing.has(node.number)) names.push("failing");
  if (chosen === node.number) names.push("chosen");
  return names.join(" ");
}

function titleOf(node, { counts, failing }) {
  const lines = [node.detail ? `${node.title}: ${node.detail}` : node.title];
  if (counts.has(node.number)) lines.push(counts.get(node.number).title);
  if (failing.has(node.number)) lines.push("Records failed here");
  return lines.join("\n");
}

function box(place, node, looks) {
  const { width, height } = place;
  const [x, y] = [place.x - width / 2, place.y - height / 2];
  const texts = [...place.name, ...place.detail].map((line, index) => {
    const at = { x: x + PADDING, y: y + PADDING + 8 + index * LINE };
    return svg("text", { ...at, class: index < place.name.length ? "name" : "detail" }, line);
  });
  const count = looks.counts.get(node.number);
  const corner = { class: "count", x: x + width - 6, y: y - 4, "text-anchor": "end" };
  const drawn = svg(
    "g",
    { class: classOf(node, looks) },
    svg("title", {}, titleOf(node, looks)),
    svg("rect", { x, y, width, height, rx: 8 }),
    texts,
    count && svg("text", corner, count.text),
  );
  const href = looks.links.get(node.number);
  return href ? svg("a", { href, "data-node": node.number }, drawn) : drawn;
}

function smallMap(graph) {
  const { width, height } = graph.graph();
  const boxes = graph.nodes().map((number) => {
    const node = graph.node(number);
    const [x, y] = [node.x - node.width / 2, node.y - node.height / 2];
    return svg("rect", { class: "node", x, y, width: node.width, height: node.height });
  });
  const size = { viewBox: `0 0 ${width} ${height}` };
  return svg("svg", { class: "map", "aria-hidden": "true", ...size }, boxes);
}

// The pointer's position in the units of a picture.
function placeIn(picture, { clientX, clientY }) {
  const matrix = picture.getScreenCTM().inverse();
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(matrix);
  return { x, y };
}

// The visible part of a picture. It is kept when the view is shown again.
class Viewport {
  constructor(name, picture, whole, map) {
    Object.assign(this, { name, picture, whole, map });
    this.seen = views.get(name) ?? { ...whole };
    this.outline = svg("rect", { class: "seen" });
    map?.append(this.outline);
    map?.addEventListener("pointerdown", (event) => this.centre(placeIn(map, event)));
    this.followWheel();
    this.followDrags();
    this.show();
  }

  show() {
    const { x, y, width, height } = this.seen;
    this.picture.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
    for (const side of Object.keys(this.seen)) this.outline.setAttribute(side, this.seen[side]);
    views.set(this.name, { ...this.seen });
  }

  fit() {
    Object.assign(this.seen, this.whole);
    this.show();
  }

  move(x, y) {
    this.seen.x += x;
    this.seen.y += y;
    this.show();
  }

  // Move by fractions of the visible part.
  pan(across, down) {
    const step = this.seen.width / 8;
    this.move(across * step, down * step);
  }

  centre({ x, y }) {
    const { seen } = this;
    this.move(x - seen.x - seen.width / 2, y - seen.y - seen.height / 2);
  }

  // Zoom by a factor around a place; by default, around the middle.
  zoom(factor, around = null) {
    const { seen, whole } = this;
    const [least, most] = [whole.width / 12, whole.width * 1.5];
    const scale = Math.min(Math.max(seen.width * factor, least), most) / seen.width;
    const { x, y } = around ?? { x: seen.x + seen.width / 2, y: seen.y + seen.height / 2 };
    seen.x = x - (x - seen.x) * scale;
    seen.y = y - (y - seen.y) * scale;
    seen.width *= scale;
    seen.height *= scale;
    this.show();
  }

  // Without a modifier key, the wheel scrolls the page.
  followWheel() {
    const zoom = (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, placeIn(this.picture, event));
    };
    this.picture.addEventListener("wheel", zoom, { passive: false });
  }

  followDrags() {
    const { picture } = this;
    let last = null;
    let isDrag = false;
    picture.addEventListener("pointerdown", ({ button, clientX, clientY }) => {
      last = button ? null : [clientX, clientY];
      isDrag = false;
    });
    picture.addEventListener("pointermove", ({ buttons, clientX, clientY, pointerId }) => {
      if (!last || !buttons) return;
      const [x, y] = [last[0] - clientX, last[1] - clientY];
      if (!isDrag && Math.hypot(x, y) < 4) return;
      isDrag = true;
      picture.setPointerCapture(pointerId);
      const scale = picture.getScreenCTM().a;
      this.move(x / scale, y / scale);
      last = [clientX, clientY];
    });
    picture.addEventListener("pointerup", () => {
      last = null;
    });
    // The end of a drag over a node is no click on the node.
    const click = (event) => {
      if (isDrag) {
        event.preventDefault();
        event.stopPropagation();
      }
      isDrag = false;
    };
    picture.addEventListener("click", click, true);
    picture.addEventListener("dragstart", (event) => event.preventDefault());
  }
}

// The picture with its buttons and keys.
function frame(name, viewport) {
  const keys = {
    "+": () => viewport.zoom(1 / 1.3),
    "-": () => viewport.zoom(1.3),
    0: () => viewport.fit(),
    ArrowLeft: () => viewport.pan(-1, 0),
    ArrowRight: () => viewport.pan(1, 0),
    ArrowUp: () => viewport.pan(0, -1),
    ArrowDown: () => viewport.pan(0, 1),
  };
  const onkeydown = (event) => {
    const isOwn = event.target === event.currentTarget && !event.ctrlKey && !event.metaKey;
    if (!isOwn || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
  const label = `Topology of ${name}. Keys: plus and minus zoom, arrows move, zero fits`;
  const button = (text, title, onclick) =>
    html("button", { type: "button", "aria-label": title, title, onclick }, text);
  return html(
    "div",
    { class: "drawing", onkeydown, tabindex: 0, role: "region", "aria-label": label },
    html(
      "div",
      { class: "zoom" },
      button("+", "Zoom in", () => viewport.zoom(1 / 1.4)),
      button("−", "Zoom out", () => viewport.zoom(1.4)),
      button("Fit", "Fit the whole topology", () => viewport.fit()),
    ),
    viewport.picture,
    viewport.map,
  );
}

// The nodes from the sources down, each below its inputs.
function list(nodes, looks) {
  const titles = new Map(nodes.map((node) => [node.number, node.title]));
  return html(
    "ol",
    { class: "steps" },
    nodes.map((node) => item(node, titles, looks)),
  );
}

function item(node, titles, looks) {
  const href = looks.links.get(node.number);
  const count = looks.counts.get(node.number);
  const from = node.inputs.filter((input) => titles.has(input));
  const texts = from.map((input) => {
    const flow = looks.flows.get(`${input} ${node.number}`);
    return flow ? `${titles.get(input)} (${flow.title})` : titles.get(input);
  });
  return html(
    "li",
    { class: classOf(node, looks) },
    href ? html("a", { href }, node.title) : html("b", {}, node.title),
    count && html("span", { class: "count" }, count.title),
    node.detail && html("small", {}, node.detail),
    texts.length > 0 && html("small", {}, `from ${texts.join(", ")}`),
  );
}

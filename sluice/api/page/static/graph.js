// Draws a topology: a picture to pan and zoom on wide screens, and a list from top to bottom on narrow ones.
//
// `sluice describe --html` puts this module into its page, so the module imports nothing. Names and expressions come
// from authors, so they go in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const CHARACTER = 6.9,
  LINE = 16,
  PADDING = 12,
  WIDEST = 30;
const MANY = 24; // from this number of nodes on, a small map shows where one is

const make =
  (namespace) =>
  (tag, attributes = {}, ...content) => {
    const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, String(value));
    }
    node.append(
      ...content.flat(3).filter((part) => part !== null && part !== undefined && part !== false),
    );
    return node;
  };
const html = make(null),
  svg = make(SVG);

// The nodes of a topology, from the groups of Sluice's SVG: { number, inputs, name, title, detail, kind, label }.
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
      kind: kindOf(title, inputs),
    };
  });
}

function kindOf(title, inputs) {
  if (!inputs.length) return "source";
  if (title.startsWith("store ")) return "store";
  return /^(topic|table) /.test(title) ? "sink" : "step";
}

// A name in lines of at most WIDEST characters, cut after _ . - or a space where possible.
function lines(text, most) {
  const result = [];
  let rest = text;
  while (rest.length > WIDEST && result.length < most - 1) {
    const cut = Math.max(...["_", ".", "-", " "].map((mark) => rest.lastIndexOf(mark, WIDEST - 1)));
    const end = cut > WIDEST / 3 ? cut + 1 : WIDEST;
    result.push(rest.slice(0, end).trimEnd());
    rest = rest.slice(end);
  }
  result.push(rest.length > WIDEST ? `${rest.slice(0, WIDEST - 1)}…` : rest);
  return result;
}

function layout(nodes, dagre, rankdir) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    rankdir,
    nodesep: rankdir === "LR" ? 18 : 26,
    ranksep: rankdir === "LR" ? 56 : 44,
    edgesep: 14,
    marginx: 8,
    marginy: 8,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const name = lines(node.title, 3);
    const detail = node.detail ? lines(node.detail, 1) : [];
    const longest = Math.max(...[...name, ...detail].map((line) => line.length));
    graph.setNode(node.number, {
      name,
      detail,
      width: Math.max(longest * CHARACTER + 2 * PADDING, 110),
      height: (name.length + detail.length) * LINE + 2 * PADDING - 6,
    });
  }
  for (const node of nodes)
    for (const input of node.inputs) if (graph.hasNode(input)) graph.setEdge(input, node.number);
  dagre.layout(graph);
  return graph;
}

// The direction in which the drawing fits best into a field of this width and height.
function best(nodes, dagre, width, height) {
  const scale = ({ width: w, height: h }) => Math.min(width / w, height / h, 1);
  const [across, down] = ["LR", "TB"].map((direction) => layout(nodes, dagre, direction));
  return scale(down.graph()) > scale(across.graph()) * 1.1 ? down : across;
}

// The path of an edge. It passes other ranks in the lane that the layout has kept free, straight from their first to their
// last edge, and bends only between ranks.
function route(graph, { v, w }) {
  const across = graph.graph().rankdir === "LR";
  const at = ({ x, y }) => (across ? [x, y] : [y, x]);
  const depth = ({ width, height }) => (across ? width : height);
  const ranks = new Map();
  for (const number of graph.nodes()) {
    const node = graph.node(number);
    const [centre] = at(node);
    const key = Math.round(centre);
    const { low = Infinity, high = -Infinity } = ranks.get(key) ?? {};
    ranks.set(key, {
      low: Math.min(low, centre - depth(node) / 2),
      high: Math.max(high, centre + depth(node) / 2),
    });
  }
  const [source, target] = [graph.node(v), graph.node(w)];
  const [[from, start], [to, end]] = [at(source), at(target)];
  const lane = graph
    .edge({ v, w })
    .points.slice(1, -1)
    .map(at)
    .flatMap(([centre, side]) => {
      const rank = ranks.get(Math.round(centre));
      const isOwn =
        Math.round(centre) === Math.round(from) || Math.round(centre) === Math.round(to);
      return rank && !isOwn
        ? [
            [rank.low, side],
            [rank.high, side],
          ]
        : [];
    });
  const all = [
    [from + depth(source) / 2, start],
    [ranks.get(Math.round(from)).high, start],
    ...lane,
    [ranks.get(Math.round(to)).low, end],
    [to - depth(target) / 2, end],
  ];
  // A line of no length would have an arrow that points anywhere.
  const points = all.filter(
    ([along, side], index) => !index || along !== all[index - 1][0] || side !== all[index - 1][1],
  );
  const text = ([along, side]) => (across ? `${along} ${side}` : `${side} ${along}`);
  let path = `M${text(points[0])}`;
  points.slice(1).forEach(([along, side], index) => {
    const [before, beside] = points[index];
    const middle = (before + along) / 2;
    path +=
      beside === side
        ? ` L${text([along, side])}`
        : ` C${text([middle, beside])} ${text([middle, side])} ${text([along, side])}`;
  });
  return path;
}

const views = new Map(); // name → the part of the drawing that was last seen

// Options by a node's number: `links` (an address), `counts` (a text and a title for the edge), `failing` (a set), `chosen`.
export function drawGraph(
  name,
  nodes,
  dagre,
  { links = new Map(), counts = new Map(), failing = new Set(), chosen = null } = {},
) {
  const field = [1180, 540];
  const graph = best(nodes, dagre, ...field);
  const whole = { x: 0, y: 0, width: graph.graph().width, height: graph.graph().height };
  const classes = (node) =>
    `box ${node.kind}${failing.has(node.number) ? " failing" : ""}${chosen === node.number ? " chosen" : ""}`;
  const edges = graph
    .edges()
    .map((edge) =>
      svg("path", { class: "arrow", d: route(graph, edge), "marker-end": "url(#graph-tip)" }),
    );
  const boxes = nodes.map((node) => {
    const place = graph.node(node.number);
    const [x, y] = [place.x - place.width / 2, place.y - place.height / 2];
    const count = counts.get(node.number);
    const texts = [...place.name, ...place.detail].map((line, index) =>
      svg(
        "text",
        {
          x: x + PADDING,
          y: y + PADDING + 8 + index * LINE,
          class: index < place.name.length ? "name" : "detail",
        },
        line,
      ),
    );
    const drawn = svg(
      "g",
      { class: classes(node) },
      svg(
        "title",
        {},
        `${node.title}${node.detail ? `: ${node.detail}` : ""}${count ? `\n${count.title}` : ""}${failing.has(node.number) ? "\nRecords failed here" : ""}`,
      ),
      svg("rect", { x, y, width: place.width, height: place.height, rx: 8 }),
      texts,
      count &&
        svg(
          "text",
          { class: "count", x: x + place.width - 6, y: y - 4, "text-anchor": "end" },
          count.text,
        ),
    );
    return links.has(node.number)
      ? svg("a", { href: links.get(node.number), "data-node": node.number }, drawn)
      : drawn;
  });
  const picture = svg(
    "svg",
    { role: "group", "aria-label": `Topology of ${name}`, preserveAspectRatio: "xMidYMid meet" },
    svg(
      "defs",
      {},
      svg(
        "marker",
        {
          id: "graph-tip",
          viewBox: "0 0 8 8",
          refX: 7,
          refY: 4,
          markerWidth: 7,
          markerHeight: 7,
          orient: "auto",
        },
        svg("path", { class: "tip", d: "M0 0L8 4L0 8z" }),
      ),
    ),
    edges,
    boxes,
  );
  picture.style.aspectRatio = `${whole.width} / ${whole.height}`;
  picture.style.maxHeight = `${Math.max(Math.min(whole.height, field[1]), 160)}px`;
  return html(
    "div",
    { class: "graph" },
    tools(name, picture, whole, nodes.length >= MANY && graph),
    list(nodes, { links, counts, failing, chosen }),
  );
}

function tools(name, picture, whole, mapped) {
  const seen = views.get(name) ?? { ...whole };
  const frame = mapped && svg("rect", { class: "seen" });
  const show = () => {
    picture.setAttribute("viewBox", `${seen.x} ${seen.y} ${seen.width} ${seen.height}`);
    if (frame)
      for (const side of ["x", "y", "width", "height"]) frame.setAttribute(side, seen[side]);
    views.set(name, { ...seen });
  };
  const zoom = (factor, x = seen.x + seen.width / 2, y = seen.y + seen.height / 2) => {
    const size =
      Math.min(Math.max(seen.width * factor, whole.width / 12), whole.width * 1.5) / seen.width;
    Object.assign(seen, {
      x: x - (x - seen.x) * size,
      y: y - (y - seen.y) * size,
      width: seen.width * size,
      height: seen.height * size,
    });
    show();
  };
  const move = (x, y) => {
    seen.x += x;
    seen.y += y;
    show();
  };
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      picture.getScreenCTM().inverse(),
    );
    return [point.x, point.y];
  };
  // Without a key, the wheel scrolls the page.
  picture.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, ...place(event));
    },
    { passive: false },
  );
  let last = null,
    moved = false;
  picture.addEventListener("pointerdown", (event) => {
    last = event.button ? null : [event.clientX, event.clientY];
    moved = false;
  });
  picture.addEventListener("pointermove", (event) => {
    if (!last || !event.buttons) return;
    const scale = picture.getScreenCTM().a;
    if (!moved && Math.hypot(event.clientX - last[0], event.clientY - last[1]) < 4) return;
    moved = true;
    picture.setPointerCapture(event.pointerId);
    move((last[0] - event.clientX) / scale, (last[1] - event.clientY) / scale);
    last = [event.clientX, event.clientY];
  });
  picture.addEventListener("pointerup", () => {
    last = null;
  });
  // The end of a drag over a node is no click on the node.
  picture.addEventListener(
    "click",
    (event) => {
      if (moved) {
        event.preventDefault();
        event.stopPropagation();
      }
      moved = false;
    },
    true,
  );
  picture.addEventListener("dragstart", (event) => event.preventDefault());
  const step = () => seen.width / 8;
  const keys = {
    "+": () => zoom(1 / 1.3),
    "-": () => zoom(1.3),
    0: () => fit(),
    ArrowLeft: () => move(-step(), 0),
    ArrowRight: () => move(step(), 0),
    ArrowUp: () => move(0, -step()),
    ArrowDown: () => move(0, step()),
  };
  const fit = () => {
    Object.assign(seen, whole);
    show();
  };
  const button = (text, label, action) =>
    html("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  const map =
    mapped &&
    svg(
      "svg",
      { class: "map", "aria-hidden": "true", viewBox: `0 0 ${whole.width} ${whole.height}` },
      mapped.nodes().map((number) => {
        const { x, y, width, height } = mapped.node(number);
        return svg("rect", { class: "node", x: x - width / 2, y: y - height / 2, width, height });
      }),
      frame,
    );
  if (map)
    map.addEventListener("pointerdown", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(
        map.getScreenCTM().inverse(),
      );
      move(point.x - seen.x - seen.width / 2, point.y - seen.y - seen.height / 2);
    });
  show();
  return html(
    "div",
    {
      class: "drawing",
      onkeydown: (event) => {
        if (
          event.target !== event.currentTarget ||
          !keys[event.key] ||
          event.ctrlKey ||
          event.metaKey
        )
          return;
        event.preventDefault();
        keys[event.key]();
      },
      tabindex: 0,
      role: "region",
      "aria-label": `Topology of ${name}. Keys: plus and minus zoom, arrows move, zero fits`,
    },
    html(
      "div",
      { class: "zoom" },
      button("+", "Zoom in", () => zoom(1 / 1.4)),
      button("−", "Zoom out", () => zoom(1.4)),
      button("Fit", "Fit the whole topology", fit),
    ),
    picture,
    map,
  );
}

// The nodes from the sources down, each below its inputs.
function list(nodes, { links, counts, failing, chosen }) {
  const titles = new Map(nodes.map((node) => [node.number, node.title]));
  const item = (node) => {
    const title = links.has(node.number)
      ? html("a", { href: links.get(node.number) }, node.title)
      : html("b", {}, node.title);
    const count = counts.get(node.number);
    const from = node.inputs
      .map((input) => titles.get(input))
      .filter(Boolean)
      .join(", ");
    return html(
      "li",
      {
        class: `box ${node.kind}${failing.has(node.number) ? " failing" : ""}${chosen === node.number ? " chosen" : ""}`,
      },
      title,
      count && html("span", { class: "count" }, count.title),
      node.detail && html("small", {}, node.detail),
      from && html("small", {}, `from ${from}`),
    );
  };
  return html("ol", { class: "steps" }, nodes.map(item));
}

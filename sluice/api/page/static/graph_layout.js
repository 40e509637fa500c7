// Where the boxes and edges of a topology's drawing are.
//
// `sluice describe --html` puts this module into its page, so the module imports nothing.

const CHARACTER = 6.9; // the width of a character
export const LINE = 16;
export const PADDING = 12;
const WIDEST = 30; // characters in a line

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
  const gaps = rankdir === "LR" ? { nodesep: 18, ranksep: 56 } : { nodesep: 26, ranksep: 44 };
  graph.setGraph({ rankdir, ...gaps, edgesep: 14, marginx: 8, marginy: 8 });
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
  for (const { number, inputs } of nodes) {
    for (const input of inputs) if (graph.hasNode(input)) graph.setEdge(input, number);
  }
  dagre.layout(graph);
  return graph;
}

// The direction in which the drawing fits best into a field of this width and height.
export function best(nodes, dagre, width, height) {
  const scaleOf = (graph) => {
    const size = graph.graph();
    return Math.min(width / size.width, height / size.height, 1);
  };
  const [across, down] = ["LR", "TB"].map((direction) => layout(nodes, dagre, direction));
  return scaleOf(down) > scaleOf(across) * 1.1 ? down : across;
}

// The path of an edge, and the place of its count. Between the ranks of its two nodes, the layout
// has kept a lane free: the path crosses each of these ranks straight, and bends only
// between ranks. A place is [along, side]: along the direction of the drawing, and across it.
export function route(graph, { v, w }) {
  const isAcross = graph.graph().rankdir === "LR";
  const placeOf = ({ x, y }) => (isAcross ? [x, y] : [y, x]);
  const depthOf = ({ width, height }) => (isAcross ? width : height);
  const ranks = ranksOf(graph, placeOf, depthOf);
  const rankAt = (along) => ranks.get(Math.round(along));
  const [source, target] = [graph.node(v), graph.node(w)];
  const [[from, start], [to, end]] = [placeOf(source), placeOf(target)];
  const places = [
    [from + depthOf(source) / 2, start],
    [rankAt(from).high, start],
  ];
  for (const point of graph.edge({ v, w }).points.slice(1, -1)) {
    const [along, side] = placeOf(point);
    const rank = rankAt(along);
    if (!rank || rank === rankAt(from) || rank === rankAt(to)) continue;
    places.push([rank.low, side], [rank.high, side]);
  }
  const [along, side] = places.at(-1);
  const entry = [rankAt(to).low, end];
  places.push(entry, [to - depthOf(target) / 2, end]);
  const path = pathThrough(places, isAcross);
  // The count of a node's only edge is before the node, where no other edge is. If several edges
  // lead to a node, their counts are in the middles of their last bends.
  const isOnly = graph.inEdges(w).length === 1;
  const [x, y] = isAcross ? [target.x - target.width / 2, target.y] : [target.x, target.y];
  if (isOnly && isAcross) return { path, count: { x: x - 9, y: y - 4, anchor: "end" } };
  if (isOnly) return { path, count: { x: x + 5, y: y - target.height / 2 - 12, anchor: "start" } };
  const middle = [(along + entry[0]) / 2, (side + entry[1]) / 2];
  const [middleX, middleY] = isAcross ? middle : middle.toReversed();
  return { path, count: { x: middleX, y: middleY - 4, anchor: "middle" } };
}

// Where each rank of nodes begins and ends, by the centre of its nodes.
function ranksOf(graph, placeOf, depthOf) {
  const ranks = new Map();
  for (const number of graph.nodes()) {
    const node = graph.node(number);
    const [centre] = placeOf(node);
    const half = depthOf(node) / 2;
    const { low = Infinity, high = -Infinity } = ranks.get(Math.round(centre)) ?? {};
    ranks.set(Math.round(centre), {
      low: Math.min(low, centre - half),
      high: Math.max(high, centre + half),
    });
  }
  return ranks;
}

function pathThrough(places, isAcross) {
  const text = ([along, side]) => (isAcross ? `${along} ${side}` : `${side} ${along}`);
  let [before] = places;
  let path = `M${text(before)}`;
  for (const place of places.slice(1)) {
    const isStraight = before[1] === place[1];
    // A line of no length would have an arrow that points anywhere.
    if (isStraight && before[0] === place[0]) continue;
    const middle = (before[0] + place[0]) / 2;
    const bend = `C${text([middle, before[1]])} ${text([middle, place[1]])} ${text(place)}`;
    path += isStraight ? ` L${text(place)}` : ` ${bend}`;
    before = place;
  }
  return path;
}

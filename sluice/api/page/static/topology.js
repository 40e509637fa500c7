// The topology of a pipeline, with the records of the chosen time, and what is known about the
// chosen node.

import { address, part, query } from "./api.js";
import { card, element } from "./dom.js";
import { counted } from "./format.js";
import { drawGraph, readGraph } from "./graph.js";
import { dagre } from "./library.js";
import { nodeFacts } from "./node_facts.js";
import { historyOf } from "./past.js";
import { choosePeriod, tabView } from "./pipeline.js";
import { failingSteps, flowsOf, problemsOf } from "./record_counts.js";

const graphs = new Map();

// The nodes of a pipeline's topology; an empty list if nobody knows the topology.
export async function nodesOf(name, edition) {
  const key = `${name} ${edition}`;
  if (!graphs.has(key)) {
    const answer = await fetch(address(`/pipelines/${part(name)}/topology?format=svg`));
    graphs.set(key, answer.ok ? readGraph(await answer.text()) : []);
  }
  return graphs.get(key);
}

export const topologyTab = tabView("topology", async (context) => {
  const past = await historyOf(context);
  const chosen = context.search.get("node");
  const mayChoose = context.overview.snapshot;
  return [mayChoose && choosePeriod(context, "/topology"), await topology(context, past, chosen)];
});

// The drawing, and the facts about the chosen node.
export async function topology(context, past, chosen = null) {
  const { name, overview, hash, search } = context;
  const nodes = await nodesOf(name, overview.snapshot?.id.split(".")[0] ?? "file");
  if (!nodes.length)
    return card(
      "Topology",
      element("p", {}, "The pipeline's file cannot be loaded, so its topology is unknown."),
    );
  const given = Object.fromEntries(search);
  const linkOf = (node) => `${hash}/topology${query({ ...given, node: node.number })}`;
  const links = new Map(nodes.map((node) => [node.number, linkOf(node)]));
  const counts = problemsOf(nodes, past);
  const flows = flowsOf(nodes, past);
  const failing = failingSteps(nodes, past, overview);
  const node = nodes.find((candidate) => String(candidate.number) === chosen);
  const drawn = drawGraph(name, nodes, await dagre(), {
    links,
    counts,
    flows,
    failing,
    chosen: node?.number ?? null,
  });
  const shown = [[...counts], [...flows], [...failing]];
  const version = JSON.stringify([name, shown, chosen, search.toString()]);
  return [
    element(
      "section",
      { class: "card", "data-island": "topology", "data-version": version },
      drawn,
      element("p", { class: "quiet" }, whatCounts(context, past), "Choose a node to see more."),
    ),
    node && nodeFacts(context, node, nodes, past),
  ];
}

function whatCounts({ overview, period }, past) {
  if (!overview.snapshot) return "";
  if (!past.batches) return "Nothing has been processed in this time. ";
  const which = past.complete ? "" : "the newest ";
  const batches = counted(past.batches, "batch", "batches");
  return (
    `The numbers count the records of ${which}${batches} ${period.text}: read from topics, ` +
    "passed to and from steps with a state, written to topics and tables, and not used by steps. " +
    "An edge without a number is not counted. "
  );
}

// The topology of a pipeline, with the records of the chosen time, and what is known about the
// chosen node.

import { address, part, query } from "./api.js";
import { badge, card, element, link } from "./dom.js";
import { counted, number } from "./format.js";
import { drawGraph, readGraph } from "./graph.js";
import { dagre } from "./library.js";
import { historyOf, sums } from "./past.js";
import { choosePeriod, tabView } from "./pipeline.js";

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
  const counts = countsOf(nodes, past);
  const failing = failingSteps(nodes, past);
  const node = nodes.find((candidate) => String(candidate.number) === chosen);
  const drawn = drawGraph(name, nodes, await dagre(), {
    links,
    counts,
    failing,
    chosen: node?.number ?? null,
  });
  const version = JSON.stringify([name, [...counts], [...failing], chosen, search.toString()]);
  return [
    element(
      "section",
      { class: "card", "data-island": "topology", "data-version": version },
      drawn,
      element("p", { class: "quiet" }, whatCounts(context, past), "Choose a node to see more."),
    ),
    node && details(name, node, nodes, overview, past, counts),
  ];
}

function whatCounts({ overview, period }, past) {
  if (!overview.snapshot) return "";
  if (!past.batches) return "Nothing has been processed in this time. ";
  const which = past.complete ? "" : "the newest ";
  const batches = counted(past.batches, "batch", "batches");
  return `The numbers count the records of ${which}${batches} ${period.text}. `;
}

function details(name, node, nodes, overview, past, counts) {
  const own = `#/pipelines/${part(name)}`;
  const facts = [];
  const fact = (term, ...value) => facts.push(element("dt", {}, term), element("dd", {}, value));
  if (node.detail) fact("Does", element("code", {}, node.detail));
  const inputs = nodes.filter((candidate) => node.inputs.includes(candidate.number));
  if (inputs.length) fact("Reads from", inputs.map(({ title }) => title).join(", "));
  if (counts.has(node.number)) fact("Records", counts.get(node.number).title);
  if (node.kind === "source") fact("Unread", unreadOf(overview, node.name));
  const failed = sums(past, "failed").get(node.name);
  if (failed) fact("Failed", badge(`${number(failed)} records`, "failed"));
  const links = overview.snapshot ? linksOf(own, node) : [];
  return card(node.title, element("dl", {}, facts), element("p", { class: "actions" }, links));
}

// Where a person goes on from a node.
function linksOf(own, node) {
  if (node.kind === "step") {
    const path = `${own}/dead-letters?step=${part(node.name)}`;
    return [link(path, "Dead letters of this step")];
  }
  const letters = link(`${own}/dead-letters`, "Dead letters");
  if (node.kind !== "store") return [letters];
  return [link(`${own}/stores/${part(node.name)}`, `Open the store ${node.name}`), letters];
}

function unreadOf(overview, topic) {
  const partitions = overview.lag.filter((each) => each.topic === topic);
  if (!partitions.length) return overview.lag_error || "unknown";
  const texts = partitions.map(
    ({ partition, unread }) => `partition ${partition}: ${number(unread)}`,
  );
  return texts.join(", ");
}

// The steps at which records of the newest column have failed.
function failingSteps(nodes, past) {
  const newest = past.columns.findLast(({ batches }) => batches);
  const failed = new Set(Object.keys(newest?.failed ?? {}));
  const steps = nodes.filter((node) => failed.has(node.name) && node.kind !== "source");
  return new Set(steps.map((node) => node.number));
}

// Number of a node → its records.
function countsOf(nodes, past) {
  const byKind = {
    read: sums(past, "read"),
    written: sums(past, "written"),
    late: sums(past, "late"),
    failed: sums(past, "failed"),
  };
  const counts = new Map();
  for (const node of nodes) {
    const what = { source: "read", sink: "written", store: "late" }[node.kind] ?? "failed";
    const count = byKind[what].get(node.name);
    if (!count) continue;
    const unit = what === "late" || what === "failed" ? ` ${what}` : "";
    counts.set(node.number, {
      text: number(count) + unit,
      title: `${number(count)} records ${what === "late" ? "too late" : what}`,
    });
  }
  return counts;
}

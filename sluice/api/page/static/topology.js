// The topology of a pipeline, with the records of the chosen time, and what is known about the chosen node.

import { address, part, query } from "./api.js";
import { badge, card, element, link } from "./dom.js";
import { counted, number } from "./format.js";
import { drawGraph, readGraph } from "./graph.js";
import { dagre } from "./library.js";
import { sums } from "./pipeline.js";

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

export async function topologyTab({ name, overview, past, chosen, hash, search, period }) {
  const nodes = await nodesOf(name, overview.snapshot?.id.split(".")[0] ?? "file");
  if (!nodes.length)
    return card(
      "Topology",
      element("p", {}, "The pipeline's file cannot be loaded, so its topology is unknown."),
    );
  const links = new Map(
    nodes.map((node) => [
      node.number,
      `${hash}/topology${query({ ...Object.fromEntries(search), node: node.number })}`,
    ]),
  );
  const counts = countsOf(nodes, past);
  const failing = failingSteps(nodes, past);
  const node = nodes.find((candidate) => String(candidate.number) === chosen);
  const drawn = drawGraph(name, nodes, await dagre(), {
    links,
    counts,
    failing,
    chosen: node?.number ?? null,
  });
  return [
    element(
      "section",
      {
        class: "card",
        "data-island": "topology",
        "data-version": JSON.stringify([
          name,
          [...counts],
          [...failing],
          chosen,
          search.toString(),
        ]),
      },
      drawn,
      element(
        "p",
        { class: "quiet" },
        !overview.snapshot
          ? ""
          : past.batches
            ? `The numbers count the records of ${past.complete ? "" : "the newest "}${counted(past.batches, "batch", "batches")} ${period.text}. `
            : "Nothing has been processed in this time. ",
        "Choose a node to see more.",
      ),
    ),
    node && details(name, node, nodes, overview, past, counts),
  ];
}

function details(name, node, nodes, overview, past, counts) {
  const own = `#/pipelines/${part(name)}`;
  const facts = [];
  const fact = (term, ...value) => facts.push(element("dt", {}, term), element("dd", {}, value));
  if (node.detail) fact("Does", element("code", {}, node.detail));
  if (node.inputs.length)
    fact(
      "Reads from",
      nodes
        .filter(({ number: candidate }) => node.inputs.includes(candidate))
        .map(({ title }) => title)
        .join(", "),
    );
  if (counts.has(node.number)) fact("Records", counts.get(node.number).title);
  if (node.kind === "source") {
    const lag = overview.lag.filter(({ topic }) => topic === node.name);
    fact(
      "Unread",
      lag.length
        ? lag.map((each) => `partition ${each.partition}: ${number(each.unread)}`).join(", ")
        : overview.lag_error || "unknown",
    );
  }
  const failed = sums(past, "failed").get(node.name);
  if (failed) fact("Failed", badge(`${number(failed)} records`, "failed"));
  return card(
    node.title,
    element("dl", {}, facts),
    element(
      "p",
      { class: "actions" },
      node.kind === "store" &&
        overview.snapshot &&
        link(`${own}/stores/${part(node.name)}`, `Open the store ${node.name}`),
      overview.snapshot &&
        link(
          `${own}/dead-letters${node.kind === "step" ? `?step=${part(node.name)}` : ""}`,
          node.kind === "step" ? "Dead letters of this step" : "Dead letters",
        ),
    ),
  );
}

// The steps at which records of the newest column have failed.
function failingSteps(nodes, past) {
  const failed = new Set(
    Object.keys(past.columns.findLast(({ batches }) => batches)?.failed ?? {}),
  );
  return new Set(
    nodes
      .filter((node) => failed.has(node.name) && node.kind !== "source")
      .map((node) => node.number),
  );
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

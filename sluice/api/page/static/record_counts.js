// The numbers of records in a period, at the edges and nodes of a topology. They come from the
// batches' audits. An edge or a node that the audits do not count shows no number.

import { counted, number, short } from "./format.js";
import { sums } from "./past.js";

// "from to" → the text on an edge, and its title. Records are counted when they are read from a
// topic, when they reach a step with a state, when they leave it, and when they are written to a
// topic or a table.
export function flowsOf(nodes, past) {
  const [read, written] = [sums(past, "read"), sums(past, "written")];
  const byNumber = new Map(nodes.map((node) => [node.number, node]));
  const writers = writersOf(nodes);
  const flows = new Map();
  for (const node of nodes) {
    for (const input of node.inputs) {
      const source = byNumber.get(input);
      const edge = `${input} ${node.number}`;
      if (source?.kind === "source" && read.has(source.name))
        flows.set(edge, flow(read.get(source.name), "read"));
      // If several edges lead to a topic, only their sum is known.
      else if (node.kind === "sink" && writers.get(node.name) === 1 && written.has(node.name))
        flows.set(edge, flow(written.get(node.name), "written"));
      else {
        const between = flowBetween(source, node, past);
        if (between) flows.set(edge, between);
      }
    }
  }
  return flows;
}

// The rows between two steps: those that reached the second one, or else all that the first one
// passed on.
function flowBetween(source, node, { received = {}, results = {} }) {
  const index = node.inputs.indexOf(source?.number);
  // A step that takes the same rows twice has two counts, but one edge.
  if (index !== node.inputs.lastIndexOf(source?.number)) return null;
  // A topic and a store can have the same name, but only steps are counted under their names.
  const reached = node.kind !== "sink" && received[`${node.name}/${index}`];
  if (reached) return flow(reached, "received");
  const passed = source?.kind !== "source" && results[source?.name];
  return passed ? flow(passed, "passed on") : null;
}

function flow(count, what) {
  return { text: short(count), title: `${counted(count, "record")} ${what}` };
}

// Topic or table → the number of edges that lead to it.
function writersOf(nodes) {
  const writers = new Map();
  for (const { kind, name, inputs } of nodes) {
    if (kind === "sink") writers.set(name, (writers.get(name) ?? 0) + inputs.length);
  }
  return writers;
}

const PROBLEMS = {
  failed: "failed",
  late: "too late",
  no_window: "in no window",
  null_key: "without a key",
  null_value: "without a value",
  duplicate: "seen before",
  missing: "without a row in the table",
  otherwise: "without an answer",
  expired: "already expired",
  old_differs: "with another old row",
  unwritten: "not written",
};

// Why a step did not use records, in words: { failed: "12 failed", … }.
export function problems(node, past) {
  const counts = Object.entries(past.steps?.[node.name] ?? {});
  return counts.map(([what, count]) => `${number(count)} ${PROBLEMS[what] ?? what}`);
}

// Number of a node → the text beside the node, and its title.
export function problemsOf(nodes, past) {
  const byNode = new Map();
  for (const node of nodes) {
    // A store and a topic can have the same name, which then means the store.
    const isNamed = nodes.some(({ kind, name }) => kind === "store" && name === node.name);
    if (node.kind !== "store" && isNamed) continue;
    const all = problems(node, past);
    if (!all.length) continue;
    const more = all.length > 1 ? ` + ${all.length - 1} more` : "";
    byNode.set(node.number, { text: all[0] + more, title: `Records: ${all.join(", ")}` });
  }
  return byNode;
}

// The steps at which records of the newest column have failed, and the step that stopped the run.
export function failingSteps(nodes, past, { failures }) {
  const newest = past.columns.findLast(({ batches }) => batches);
  const failed = new Set(Object.keys(newest?.failed ?? {}));
  const details = failures.map(({ detail }) => detail);
  const hasStopped = ({ title, at }) =>
    at !== "" && details.some((detail) => detail.includes(`${title} at ${at}`));
  const steps = nodes.filter(
    (node) => hasStopped(node) || (failed.has(node.name) && node.kind !== "source"),
  );
  return new Set(steps.map((node) => node.number));
}

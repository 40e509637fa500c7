// What is known about one node of a topology, with links to more.

import { part } from "./api.js";
import { badge, element, link } from "./dom.js";
import { number, short } from "./format.js";
import { sums } from "./past.js";
import { failingSteps, problems } from "./record_counts.js";

export function nodeFacts(context, node, nodes, past) {
  const { name, overview } = context;
  const inputs = nodes.filter((candidate) => node.inputs.includes(candidate.number));
  const isFailing = failingSteps([node], past, overview).size > 0;
  const unused = problems(node, past).join(", ");
  const facts = [
    fact("Does", node.detail && element("code", {}, node.detail)),
    fact("Written in", node.at && element("code", {}, node.at)),
    fact("Takes", inputs.map(({ title }) => title).join(", ")),
    fact("Records", recordsOf(node, context, past)),
    fact("Unread", node.kind === "source" && unreadOf(overview, node.name)),
    fact("Not used", isFailing ? badge(unused || "the run stopped here", "failed") : unused),
  ];
  const links = overview.snapshot ? linksOf(`#/pipelines/${part(name)}`, node) : [];
  return element(
    "section",
    { class: "card", "data-reveal": node.number },
    element("h2", {}, node.title),
    element("dl", {}, facts),
    element("p", { class: "actions" }, links),
  );
}

const fact = (term, value) => value && [element("dt", {}, term), element("dd", {}, value)];

// The number of records read from a topic, written to a topic or table, or received by a step, and
// the rate.
function recordsOf(node, { period }, past) {
  const what = { source: "read", sink: "written" }[node.kind] ?? "received";
  const count = what === "received" ? receivedBy(node, past) : sums(past, what).get(node.name);
  if (!count) return null;
  const rate = (count * 1000) / (period.to - period.from);
  const perSecond = rate < 0.1 ? "less than 0.1" : short(rate);
  const passedOn = node.kind === "step" && past.results?.[node.name];
  const results = passedOn ? `; ${number(passedOn)} passed on` : "";
  return `${number(count)} ${what} ${period.text}, ${perSecond} per second on average${results}`;
}

// The rows that a step received; null unless those of all of its inputs are counted.
function receivedBy({ name, inputs }, { received = {} }) {
  const counts = inputs.map((_, index) => received[`${name}/${index}`]);
  if (!counts.every(Boolean)) return null;
  return counts.reduce((sum, count) => sum + count, 0);
}

function unreadOf(overview, topic) {
  const partitions = overview.lag.filter((each) => each.topic === topic);
  if (!partitions.length) return overview.lag_error || "unknown";
  const texts = partitions.map(
    ({ partition, unread }) => `partition ${partition}: ${number(unread)}`,
  );
  return texts.join(", ");
}

function linksOf(own, node) {
  if (node.kind === "step") {
    const path = `${own}/dead-letters?step=${part(node.name)}`;
    return [link(path, "Dead letters of this step")];
  }
  const letters = link(`${own}/dead-letters`, "Dead letters");
  if (node.kind !== "store") return [letters];
  return [link(`${own}/stores/${part(node.name)}`, `Open the store ${node.name}`), letters];
}

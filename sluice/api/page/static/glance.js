// The first view of a pipeline: its health, freshness, inputs and outputs, and latest events.
// Charts are below.

import { get, optional, part } from "./api.js";
import { airflowLink, badge, card, element, link } from "./dom.js";
import { ago, counted, number, short, time } from "./format.js";
import { awaited, rejectedTotal, tookText, unread, unreadByPartition } from "./health.js";
import { batchList } from "./batches.js";
import { panel } from "./panel.js";
import { COLUMNS, historyOf, sums } from "./past.js";
import { choosePeriod, goToPeriod, tabView } from "./pipeline.js";
import { spark } from "./spark.js";
import { storePath } from "./store_words.js";
import { nodesOf, topology } from "./topology.js";

const live = new Map(); // pipeline → [[epoch ms, unread]], since the page was opened
const SHOWN_EVENTS = 6;
const SHOWN_NAMES = 4;
const SHOWN_BATCHES = 20;
const SHOWN_PARTITIONS = 3;

export const glance = tabView("", async (context) => {
  const { name, overview } = context;
  const [past, newest, runs, nodes] = await Promise.all([
    historyOf(context),
    overview.snapshot
      ? optional(get(`/pipelines/${part(name)}/batches`, { limit: SHOWN_BATCHES }))
      : [],
    optional(get(`/pipelines/${part(name)}/runs`, { limit: SHOWN_EVENTS })),
    nodesOf(name, overview.snapshot?.id.split(".")[0] ?? "file"),
  ]);
  if (!overview.snapshot) {
    const drawn = await topology(context, past);
    return [
      notStarted(overview),
      answers(does(context, nodes), last(context, newest, runs)),
      drawn,
    ];
  }
  return [
    answers(
      right(context, past, newest[0]),
      fresh(context, newest),
      does(context, nodes),
      last(context, newest, runs),
    ),
    choosePeriod(context, ""),
    await charts(context, past, newest),
    batchList(newest),
    await panel(name),
  ];
});

const answers = (...cards) =>
  element("section", { class: "answers", "aria-label": "At a glance" }, cards);

function answer(question, headline, ...content) {
  return element(
    "section",
    { class: "card answer" },
    element("h2", {}, question),
    element("p", { class: "headline" }, headline),
    content,
  );
}

function notStarted(overview) {
  if (overview.health !== "not_started") return null;
  return card(
    "Not started",
    element("p", {}, "The pipeline has never run. ", awaited(overview)),
    element(
      "p",
      { class: "quiet" },
      overview.paused && "Its DAG is paused: unpause it in Airflow. ",
      "Its first run starts when its topics have records.",
    ),
  );
}

function right({ overview, period }, past, newest) {
  const late = rejectedTotal(Object.fromEntries(sums(past, "late")));
  const lateText = late ? `${counted(late, "late record")}` : "No late records";
  return answer(
    "Is it right?",
    audits(period, past, newest),
    element("p", {}, lettersOf(overview)),
    element("p", {}, `${lateText} ${period.text}.`),
  );
}

function audits(period, past, newest) {
  if (past.wrong.length) return unbalanced(past.wrong[0]);
  if (past.batches) {
    const which = past.complete ? "all" : "the newest";
    const several = ` the audits of ${which} ${number(past.batches)} batches balance`;
    const text = past.batches === 1 ? " the audit of the only batch balances" : several;
    return [badge("yes", "success"), text];
  }
  if (!newest) return [badge("no batch"), ` ${period.text}`];
  if (newest.wrong.length) return unbalanced(`${newest.snapshot}: ${newest.wrong[0]}`);
  return [badge("yes", "success"), " the newest batch balances, ", ago(newest.published_at)];
}

const unbalanced = (why) => [badge("an audit does not balance", "failed"), ` ${why}`];

function lettersOf(overview) {
  const rejected = rejectedTotal(overview.dead_letters);
  if (!rejected) return "No dead letters in 24 hours.";
  const reasons = Object.entries(overview.dead_letters);
  const text = reasons.map(([reason, count]) => `${reason} ${number(count)}`).join(", ");
  const path = `#/pipelines/${part(overview.pipeline)}/dead-letters`;
  return [link(path, counted(rejected, "dead letter")), ` in 24 hours: ${text}`];
}

function unreadNow(overview) {
  if (overview.unread === null) return [badge("unknown", "waiting"), ` ${overview.lag_error}`];
  if (overview.unread === 0) return [badge("yes", "success"), " everything is read"];
  const isRunning = overview.health === "running";
  const state = isRunning ? badge("reading", "running") : badge("behind", "behind");
  const unit = overview.unread === 1 ? " unread record" : " unread records";
  return [state, " ", unread(overview), unit];
}

function fresh({ overview }, [newest]) {
  const rate = newest?.records_per_second;
  return answer(
    "Is it fresh?",
    unreadNow(overview),
    element(
      "p",
      {},
      "Snapshot ",
      element("code", {}, overview.snapshot.id),
      " is ",
      ago(overview.snapshot.published_at, " old"),
      overview.newest_event && [". Newest event: ", time(overview.newest_event)],
      ".",
    ),
    partitions(overview),
    element(
      "p",
      { class: "with-spark" },
      spark(overview.records),
      rate ? ` ${short(rate)} records per second in the newest batch` : "",
    ),
  );
}

function partitions(overview) {
  const behind = unreadByPartition(overview);
  if (!behind.length) return null;
  const shown = behind.slice(0, SHOWN_PARTITIONS).join(", ");
  const more = behind.length - SHOWN_PARTITIONS;
  return element("p", {}, more > 0 ? `${shown} and ${more} more partitions` : shown);
}

function does({ name, hash, overview }, nodes) {
  const question = "What does it do?";
  if (!nodes.length)
    return answer(question, "Its topology is unknown, because its file cannot be loaded.");
  const topology = `${hash}/topology`;
  const storeOf = (node) => link(storePath(name, node.name), node.name);
  const facts = [
    fact("Reads", topology, ofKind(nodes, "source")),
    fact("Keeps", topology, ofKind(nodes, "store"), overview.snapshot ? storeOf : nameOf),
    fact("Writes", topology, ofKind(nodes, "sink")),
  ];
  const headline = [`${counted(nodes.length, "node")} `, link(topology, "in the topology")];
  return answer(question, headline, element("dl", {}, facts));
}

// The nodes of a kind, each title once.
function ofKind(nodes, kind) {
  const byTitle = new Map();
  for (const node of nodes) if (node.kind === kind) byTitle.set(node.title, node);
  return [...byTitle.values()];
}

const nameOf = (node) => element("code", {}, node.name);

// The first nodes by name, and a link to the others.
function fact(term, topology, nodes, shownAs = nameOf) {
  if (!nodes.length) return null;
  const first = nodes.slice(0, SHOWN_NAMES);
  const names = first.map((node, index) => [index > 0 && ", ", shownAs(node)]);
  const more = nodes.length - first.length;
  const others = more > 0 && [" and ", link(topology, `${more} more`)];
  return [element("dt", {}, term), element("dd", {}, names, others)];
}

const failureEvent = (failure) => ({
  at: failure.at,
  what: [badge("failure", "failed"), ` ${failure.title}`],
});

const runEvent = (run) => ({
  at: run.ended_at ?? run.started_at ?? run.queued_at,
  what: [
    badge(run.state, run.state),
    " ",
    run.action !== "run" && `${run.action} `,
    airflowLink(run.log, run.run),
    tookText(run),
    run.attempts.length > 1 && `, ${run.attempts.length} attempts`,
  ],
});

const batchEvent = (batch) => ({
  at: batch.published_at,
  what: ["Snapshot ", element("code", {}, batch.snapshot), `: ${counted(batch.records, "record")}`],
});

function last({ hash, overview }, batches, runs) {
  const events = [
    ...overview.failures.map(failureEvent),
    ...runs.map(runEvent),
    ...batches.slice(0, SHOWN_EVENTS).map(batchEvent),
  ];
  const newest = events.filter(({ at }) => at).sort((a, b) => (a.at < b.at ? 1 : -1));
  if (!newest.length) return answer("What happened last?", "Nothing yet.");
  return element(
    "section",
    { class: "card answer" },
    element("h2", {}, "What happened last?"),
    element(
      "ul",
      { class: "events" },
      newest
        .slice(0, SHOWN_EVENTS)
        .map(({ at, what }) => element("li", {}, time(at), element("span", {}, what))),
    ),
    element("p", {}, link(`${hash}/runs`, "All runs")),
  );
}

async function charts(context, past, batches) {
  const { name, overview, period } = context;
  const samples = live.get(name) ?? [];
  if (overview.unread !== null) samples.push([Date.now(), overview.unread]);
  live.set(name, samples.slice(-200));
  const [{ historyCharts }, { uPlot }] = await Promise.all([
    import("./history.js"),
    import("./library.js"),
  ]);
  const drawn = historyCharts(await uPlot(), past, {
    count: COLUMNS,
    period,
    samples: live.get(name),
    marks: marksOf(overview, past, batches),
    select: goToPeriod(context, ""),
  });
  const edition = [
    name,
    period.range ?? [period.from, period.to],
    batches[0]?.snapshot,
    overview.unread,
    Math.floor(Date.now() / 60_000),
    document.documentElement.dataset.theme,
  ];
  return element(
    "div",
    { "data-island": "charts", "data-version": JSON.stringify(edition) },
    drawn,
    element("p", { class: "quiet" }, "Drag over a chart to look closer."),
  );
}

// The events that the charts mark: failures, changes, a new generation.
function marksOf(overview, past, batches) {
  const marks = [];
  for (const { at, title } of overview.failures)
    marks.push({ at: Date.parse(at), text: title, isFailure: true });
  for (const { at, text } of past.marks) marks.push({ at: Date.parse(at), text });
  const begun = batches.find((batch) => batch.snapshot.endsWith(".0"));
  const [generation] = begun?.snapshot.split(".") ?? [];
  if (begun && generation !== "1")
    marks.push({ at: Date.parse(begun.published_at), text: `generation ${generation} begins` });
  return marks;
}

// The first view of a pipeline: is it right, is it fresh, what does it do, what happened last. Charts are below.

import { address, get, part } from "./api.js";
import { airflowLink, badge, card, element, link, table } from "./dom.js";
import { ago, counted, duration, number, short, time } from "./format.js";
import { awaited, rejectedTotal, unread } from "./health.js";
import {
  choosePeriod,
  COLUMNS,
  goToPeriod,
  historyOf,
  optional,
  sums,
  tabView,
  tookText,
} from "./pipeline.js";
import { spark } from "./spark.js";
import { storePath } from "./stores.js";
import { nodesOf, topologyTab } from "./topology.js";

const live = new Map(); // pipeline → [[epoch ms, unread]], since the page was opened
const SHOWN_EVENTS = 6,
  SHOWN_NAMES = 4,
  SHOWN_BATCHES = 20;

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
    const drawn = await topologyTab({ ...context, past, chosen: null });
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
      overview.paused
        ? "Its DAG is paused: unpause it in Airflow, and its first run starts when its topics have records."
        : "Its first run starts when its topics have records.",
    ),
  );
}

function right({ overview, period }, past, newest) {
  const rejected = rejectedTotal(overview.dead_letters);
  const late = rejectedTotal(Object.fromEntries(sums(past, "late")));
  const path = `#/pipelines/${part(overview.pipeline)}`;
  let headline = [badge("no batch"), ` ${period.text}`];
  if (newest && !past.batches)
    headline = newest.wrong.length
      ? [badge("an audit does not balance", "failed"), ` ${newest.snapshot}: ${newest.wrong[0]}`]
      : [badge("yes", "success"), " the newest batch balances, ", ago(newest.published_at)];
  if (past.wrong.length)
    headline = [badge("an audit does not balance", "failed"), ` ${past.wrong[0]}`];
  else if (past.batches)
    headline = [
      badge("yes", "success"),
      past.batches === 1
        ? " the audit of the only batch balances"
        : ` the audits of ${past.complete ? "all" : "the newest"} ${number(past.batches)} batches balance`,
    ];
  return answer(
    "Is it right?",
    headline,
    element(
      "p",
      {},
      rejected
        ? [
            link(`${path}/dead-letters`, counted(rejected, "dead letter")),
            ` in 24 hours: ${Object.entries(overview.dead_letters)
              .map(([reason, count]) => `${reason} ${number(count)}`)
              .join(", ")}`,
          ]
        : "No dead letters in 24 hours.",
    ),
    element(
      "p",
      {},
      late ? `${counted(late, "late record")} ${period.text}` : `No late records ${period.text}.`,
    ),
  );
}

function fresh({ overview }, [newest]) {
  let headline = [badge("unknown", "waiting"), ` ${overview.lag_error}`];
  if (overview.unread === 0) headline = [badge("yes", "success"), " everything is read"];
  else if (overview.unread)
    headline = [
      badge(
        overview.health === "running" ? "reading" : "behind",
        overview.health === "running" ? "running" : "behind",
      ),
      " ",
      unread(overview),
      overview.unread === 1 ? " unread record" : " unread records",
    ];
  return answer(
    "Is it fresh?",
    headline,
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
      newest?.records_per_second
        ? ` ${short(newest.records_per_second)} records per second in the newest batch`
        : "",
    ),
  );
}

function partitions(overview) {
  const behind = overview.lag
    .filter((partition) => partition.unread)
    .sort((a, b) => b.unread - a.unread);
  if (!behind.length) return null;
  const shown = behind
    .slice(0, 3)
    .map(({ topic, partition, unread: count }) => `${topic}/${partition}: ${number(count)}`)
    .join(", ");
  return element(
    "p",
    {},
    behind.length > 3 ? `${shown} and ${behind.length - 3} more partitions` : shown,
  );
}

function does({ name, hash, overview }, nodes) {
  if (!nodes.length)
    return answer(
      "What does it do?",
      "Its topology is unknown, because its file cannot be loaded.",
    );
  const names = (kind) => [
    ...new Map(
      nodes.filter((node) => node.kind === kind).map((node) => [node.title, node]),
    ).values(),
  ];
  const shown = (all, href) => [
    all
      .slice(0, SHOWN_NAMES)
      .map((node, index) => [
        index > 0 && ", ",
        href ? link(href(node), node.name) : element("code", {}, node.name),
      ]),
    all.length > SHOWN_NAMES && [
      " and ",
      link(`${hash}/topology`, `${all.length - SHOWN_NAMES} more`),
    ],
  ];
  const [sources, stores, sinks] = ["source", "store", "sink"].map(names);
  return answer(
    "What does it do?",
    [`${counted(nodes.length, "node")} `, link(`${hash}/topology`, "in the topology")],
    element(
      "dl",
      {},
      element("dt", {}, "Reads"),
      element("dd", {}, shown(sources)),
      stores.length > 0 && [
        element("dt", {}, "Keeps"),
        element(
          "dd",
          {},
          shown(stores, overview.snapshot && ((node) => storePath(name, node.name))),
        ),
      ],
      sinks.length > 0 && [element("dt", {}, "Writes"), element("dd", {}, shown(sinks))],
    ),
  );
}

function last({ hash, overview }, batches, runs) {
  const events = [
    ...overview.failures.map((failure) => [
      failure.at,
      [badge("failure", "failed"), ` ${failure.title}`],
    ]),
    ...runs.map((run) => [
      run.ended_at ?? run.started_at ?? run.queued_at,
      [
        badge(run.state, run.state),
        " ",
        airflowLink(run.log, run.run),
        tookText(run),
        run.attempts.length > 1 && `, ${run.attempts.length} attempts`,
      ],
    ]),
    ...batches
      .slice(0, SHOWN_EVENTS)
      .map((batch) => [
        batch.published_at,
        ["Snapshot ", element("code", {}, batch.snapshot), `: ${counted(batch.records, "record")}`],
      ]),
  ]
    .filter(([at]) => at)
    .sort(([a], [b]) => (a < b ? 1 : -1))
    .slice(0, SHOWN_EVENTS);
  if (!events.length) return answer("What happened last?", "Nothing yet.");
  return element(
    "section",
    { class: "card answer" },
    element("h2", {}, "What happened last?"),
    element(
      "ul",
      { class: "events" },
      events.map(([at, what]) => element("li", {}, time(at), element("span", {}, what))),
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
  const marks = overview.failures.map((failure) => ({
    at: Date.parse(failure.at),
    text: failure.title,
    isFailure: true,
  }));
  for (const { at, text } of past.marks) marks.push({ at: Date.parse(at), text });
  const begun = batches.find((batch) => batch.snapshot.endsWith(".0"));
  if (begun && !begun.snapshot.startsWith("1."))
    marks.push({
      at: Date.parse(begun.published_at),
      text: `generation ${begun.snapshot.split(".")[0]} begins`,
    });
  const drawn = historyCharts(await uPlot(), past, {
    count: COLUMNS,
    period,
    samples: live.get(name),
    marks,
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

const counts = (byName) =>
  Object.entries(byName)
    .map(([name, count]) => `${name} ${number(count)}`)
    .join(", ") || "0";

function batchList(batches) {
  const phases = (batch) =>
    Object.entries(batch.phases)
      .map(([name, seconds]) => `${name}: ${duration(seconds)}`)
      .join("\n");
  return element(
    "details",
    { class: "card" },
    element("summary", {}, "Newest batches with their audits"),
    table(
      [
        { title: "Snapshot", cell: (batch) => element("code", {}, batch.snapshot) },
        { title: "Published", cell: (batch) => time(batch.published_at) },
        { title: "Records", number: true, cell: (batch) => number(batch.records) },
        { title: "Applied", number: true, cell: (batch) => number(batch.applied) },
        { title: "Late", cell: (batch) => counts(batch.late) },
        { title: "Dropped", cell: (batch) => counts(batch.dropped) },
        { title: "Dead letters", cell: (batch) => counts(batch.dead_letters) },
        {
          title: "Duration",
          number: true,
          cell: (batch) => element("span", { title: phases(batch) }, duration(batch.seconds)),
        },
        {
          title: "Audit",
          cell: (batch) =>
            batch.wrong.length
              ? badge(batch.wrong.join("; "), "failed")
              : badge("balances", "success"),
        },
        { title: "Run", cell: (batch) => (batch.log ? airflowLink(batch.log, "log") : "–") },
      ],
      batches,
      { label: "Batches", empty: "Nothing has been published yet." },
    ),
  );
}

// A panel that the pipeline brings along: the module PIPELINE_panel.js beside its file.
async function panel(name) {
  const url = address(`/../panels/${part(name)}.js`).replace("/v1/../", "/");
  const reply = await fetch(url);
  if (reply.status !== 200) return null;
  try {
    const module = await import(url);
    const [{ pointsChart }, { uPlot }] = await Promise.all([
      import("./charts.js"),
      import("./library.js"),
    ]);
    const library = await uPlot();
    const chart = (title, series, options) => pointsChart(library, title, series, options);
    const read = (path) =>
      fetch(address("").replace(/\/sluice\/v1$/, "") + path).then((data) => data.json());
    return await module.default({ get: read, card, chart, element, number, duration, time, table });
  } catch (error) {
    return card(
      "Panel",
      element("p", { class: "quiet" }, `The panel of ${name} failed: ${error.message}`),
    );
  }
}

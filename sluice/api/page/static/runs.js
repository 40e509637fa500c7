// The runs of a pipeline, and how each spent its time, from its request to its last batch.

import { get, optional, part, query } from "./api.js";
import { attemptsCard, outcomeBadge } from "./attempts.js";
import { batchList } from "./batches.js";
import { airflowLink, badge, card, element, link, svg, table } from "./dom.js";
import { bytes, counted, duration, number, time } from "./format.js";
import { took } from "./health.js";
import { batchesOf } from "./past.js";
import { PHASES } from "./phases.js";
import { choosePeriod, tabView } from "./pipeline.js";

const MOST_RUNS = 200;
const MOST_BATCHES = 1_000; // the most that are shown of a run
const SHOWN_RUNS = 15;
const LONGEST_PAUSE_MS = 600_000; // a longer pause between batches separates two runs
const KINDS = {
  queue: "waiting for Airflow",
  begin: "starting",
  ...PHASES,
  wait: "between batches",
  end: "after the last batch",
  retry: "waiting for the next attempt",
  other: "without batches of the current generation",
};

export const runsTab = tabView("runs", (context) =>
  context.search.has("run") ? oneRun(context) : allRuns(context),
);

// A run of Airflow with its batches; its page in Airflow links here.
async function oneRun({ name, overview, hash, search }) {
  const path = `/pipelines/${part(name)}`;
  const inAirflow = await optional(get(`${path}/runs`, { limit: MOST_RUNS }));
  const run = runNamed(search.get("run"), inAirflow);
  const back = element("p", {}, link(`${hash}/runs`, "All runs"));
  if (!run) {
    const text = `It is not among the newest ${MOST_RUNS} runs in Airflow.`;
    return [back, card(`Run ${search.get("run")}`, element("p", {}, text))];
  }
  const id = run.run;
  const since = run.queued_at ?? run.started_at;
  const limit = MOST_BATCHES;
  const until = new Date().toISOString();
  const [batches, finished] = await Promise.all([
    overview.snapshot ? get(`${path}/batches`, { limit, since }) : [],
    optional(get(`${path}/finished-runs`, { since, until, limit: MOST_RUNS })),
  ]);
  const own = batches.filter((batch) => nameOf(batch) === id);
  const costs = finished.filter((attempt) => nameOf(attempt) === id).reverse();
  const shown = { ...fromAirflow(run, own), attempts: costs };
  const columns = columnsOf(shown.ended - shown.begun);
  return [
    back,
    element(
      "section",
      { class: "card" },
      legend(shown.ended - shown.begun, [shown]),
      table(columns, [shown], { label: "Run" }),
    ),
    attemptsCard(run, costs),
    batchList(own, { isOpen: true, title: "Batches of the run, with their audits" }),
  ];
}

// Airflow 3.1 puts the id of a run into the address as it is, where a plus sign means a space. No
// id has a space.
function runNamed(id, runs) {
  const ids = [id, id.replaceAll(" ", "+")];
  return runs.find((run) => ids.includes(run.run));
}

async function allRuns(context) {
  const { name, period, search, hash } = context;
  const path = `/pipelines/${part(name)}`;
  const [since, until] = [period.from, period.to].map((at) => new Date(at).toISOString());
  const [batches, inAirflow, finished] = await Promise.all([
    batchesOf(context),
    optional(get(`${path}/runs`, { limit: MOST_RUNS })),
    optional(get(`${path}/finished-runs`, { since, until, limit: MOST_RUNS })),
  ]);
  const known = new Set(inAirflow.map(({ run }) => run));
  const isKnown = (ofRun) => known.has(nameOf(ofRun));
  const ended = finished.filter((run) => !isKnown(run)).map((run) => fromLedger(run, batches));
  // Runs in progress, and runs from before the ledger kept runs, are only known by their batches.
  const covered = new Set(ended.flatMap((run) => run.batches.map(({ batch }) => batch)));
  const others = batches.filter((batch) => !isKnown(batch) && !covered.has(batch));
  const costOf = (run) => finished.filter((attempt) => nameOf(attempt) === run.run);
  const runs = [
    ...inAirflow.map((run) => ({ ...fromAirflow(run, batches), attempts: costOf(run) })),
    ...ended,
    ...withoutAirflow(others),
  ]
    .filter(({ begun, ended }) => begun <= period.to && ended >= period.from)
    .sort((a, b) => b.begun - a.begun);
  const shown = search.get("all") === "1" ? runs : runs.slice(0, SHOWN_RUNS);
  const longest = Math.max(...shown.map(({ begun, ended }) => ended - begun), 1);
  const rest = `${hash}/runs${query({ ...Object.fromEntries(search), all: 1 })}`;
  return [
    choosePeriod(context, "/runs"),
    element(
      "section",
      { class: "card" },
      shown.length > 0 && legend(longest, shown),
      table(columnsOf(longest, hash), shown, { label: "Runs", empty: `No runs ${period.text}.` }),
      shown.length < runs.length &&
        element("p", {}, link(rest, `Show all ${number(runs.length)} runs`)),
    ),
  ];
}

// What the colours of the bars mean, and how long the longest bar is.
function legend(longest, runs) {
  const used = new Set(runs.flatMap(({ segments }) => segments.map(({ kind }) => kind)));
  const kinds = Object.entries(KINDS).filter(([kind]) => used.has(kind));
  const items = kinds.map(([kind, text]) => element("li", { class: `kind-${kind}` }, text));
  const scale = element("p", { class: "quiet" }, `A whole bar is ${duration(longest / 1000)}.`);
  return [element("ul", { class: "legend" }, items), scale];
}

function nameCell({ run, name, log }, hash) {
  if (run) {
    const batches = link(`${hash}/runs${query({ run: run.run })}`, "batches");
    return [airflowLink(run.log, run.run), hash && [" ", batches]];
  }
  return log ? airflowLink(log, name) : "from the command line";
}

function stateCell({ run, outcome }) {
  if (outcome) return outcomeBadge(outcome);
  if (!run) return badge("published", "success");
  return [
    badge(run.state, run.state),
    run.action !== "run" && ` ${run.action}`,
    run.started_by && ` by ${run.started_by}`,
  ];
}

function tookCell({ run, begun, ended }) {
  const seconds = (ended - begun) / 1000;
  return duration(run ? (took(run) ?? seconds) : seconds);
}

function attemptsCell({ run }) {
  const attempts = run?.attempts ?? [];
  if (!attempts.length) return "–";
  return attempts.map(({ log, number: which, state }) => [
    element("span", { class: "short" }, airflowLink(log, badge(`${which}: ${state}`, state))),
    " ",
  ]);
}

// `hash`: the address of the pipeline, for links to the views of runs.
const columnsOf = (longest, hash = "") => [
  { title: "Run", cell: (run) => nameCell(run, hash) },
  { title: "State", cell: stateCell },
  { title: "Began", cell: ({ begun }) => time(new Date(begun).toISOString()) },
  { title: "Took", number: true, cell: tookCell },
  {
    title: "Where the time went",
    wide: true,
    cell: (run) => [bar(run, longest), element("small", {}, sentence(run))],
  },
  {
    title: "CPU",
    number: true,
    cell: ({ attempts }) => sumOf(attempts, "cpu_seconds", duration),
  },
  {
    title: "Most memory",
    number: true,
    cell: ({ attempts }) => mostOf(attempts, "memory_bytes", bytes),
  },
  { title: "Attempts", cell: attemptsCell },
];
const knownOf = (attempts, name) =>
  (attempts ?? []).map((attempt) => attempt[name]).filter((value) => value !== null);

function sumOf(attempts, name, format) {
  const values = knownOf(attempts, name);
  return values.length ? format(values.reduce((sum, value) => sum + value, 0)) : "–";
}

function mostOf(attempts, name, format) {
  const values = knownOf(attempts, name);
  return values.length ? format(Math.max(...values)) : "–";
}

// A run that has ended, and that is not in Airflow.
function fromLedger(run, batches) {
  const [begun, ended] = [Date.parse(run.began_at), Date.parse(run.ended_at)];
  const own = batches
    .filter((batch) => batch.run === run.run)
    .map(span)
    .filter(({ to }) => to >= begun && to <= ended + 1000)
    .sort((a, b) => a.from - b.from);
  const segments = [];
  during(segments, own, begun, ended, run.outcome === "succeeded");
  return {
    name: nameOf(run),
    log: run.log,
    run: null,
    outcome: run.outcome,
    begun,
    ended: Math.max(ended, begun + 1),
    segments,
    batches: own,
    attempts: [run],
  };
}

// { run, begun, ended, segments: [{ kind, from, to }], batches } of a run in Airflow.
function fromAirflow(run, batches) {
  const own = batches
    .filter((batch) => nameOf(batch) === run.run)
    .map(span)
    .sort((a, b) => a.from - b.from);
  const at = (text) => (text ? Date.parse(text) : null);
  const began = at(run.started_at) ?? at(run.queued_at) ?? own[0]?.from ?? Date.now();
  const until = (ended) => at(ended) ?? Date.now();
  const started = run.attempts.filter((attempt) => attempt.started_at);
  const attempts = started.map((attempt) => [
    at(attempt.started_at),
    until(attempt.ended_at),
    attempt.state === "success",
  ]);
  if (!run.attempts.length) attempts.push([began, until(run.ended_at), run.state === "success"]);
  const begun = Math.min(at(run.queued_at) ?? began, began);
  const segments = [];
  let end = begun;
  attempts.forEach(([from, to, hasSucceeded], number) => {
    add(segments, number ? "retry" : "queue", end, from);
    const within = own.filter((batch) => batch.from >= from - 1000 && batch.to <= to + 1000);
    end = during(segments, within, from, to, hasSucceeded);
  });
  return { run, begun, ended: Math.max(end, begun + 1), segments, batches: own };
}

// The name of a batch's run, from DAG/RUN/TASK; the run's id may contain slashes.
const nameOf = (batch) => batch.run.split("/").slice(1, -1).join("/");

// The runs of batches whose run Airflow does not have: from the command line, or deleted in
// Airflow.
function withoutAirflow(batches) {
  const runs = [];
  let current = null;
  for (const batch of [...batches].reverse()) {
    const { from, to } = span(batch);
    const name = batch.log ? nameOf(batch) : "";
    const isNext = current?.name === name && from - current.ended <= LONGEST_PAUSE_MS;
    if (!isNext) {
      current = { name, log: batch.log, run: null, begun: from, ended: to, batches: [] };
      runs.push(current);
    }
    current.batches.push(span(batch));
    current.ended = to;
  }
  for (const run of runs) {
    run.segments = [];
    during(run.segments, run.batches, run.begun, run.ended, true);
  }
  return runs;
}

function span(batch) {
  const to = Date.parse(batch.published_at);
  return { batch, from: to - (batch.seconds ?? 0) * 1000, to };
}

// An attempt without batches has not begun to read. But if it has succeeded, its batches are of
// another generation, or it had another task.
function during(segments, batches, from, to, hasSucceeded) {
  let until = from;
  batches.forEach(({ batch, from: begins }, number) => {
    add(segments, number ? "wait" : "begin", until, begins);
    until = Math.max(begins, until);
    for (const [phase, seconds] of Object.entries(batch.phases)) {
      add(segments, phase in PHASES ? phase : "state", until, until + seconds * 1000);
      until += seconds * 1000;
    }
  });
  const withoutBatches = hasSucceeded ? "other" : "begin";
  add(segments, batches.length ? "end" : withoutBatches, until, to);
  return Math.max(until, to);
}

function add(segments, kind, from, to) {
  if (to > from) segments.push({ kind, from, to });
}

function bar({ begun, segments, ...shown }, longest) {
  const share = (ms) => `${((100 * ms) / longest).toFixed(3)}%`;
  const parts = segments.map(({ kind, from, to }) => {
    const place = { x: share(from - begun), y: 1, width: share(to - from), height: 16 };
    const title = svg("title", {}, `${KINDS[kind]}: ${duration((to - from) / 1000)}`);
    return svg("rect", { class: `kind-${kind}`, ...place }, title);
  });
  const label = sentence({ segments, ...shown });
  const attributes = {
    class: "gantt",
    width: "100%",
    height: 18,
    role: "img",
    "aria-label": label,
  };
  return svg("svg", attributes, parts);
}

function sentence({ segments, batches }) {
  const sums = new Map();
  for (const { kind, from, to } of segments) sums.set(kind, (sums.get(kind) ?? 0) + to - from);
  const longest = [...sums].sort(([, a], [, b]) => b - a).slice(0, 4);
  const parts = longest.map(([kind, ms]) => `${KINDS[kind]} ${duration(ms / 1000)}`);
  const records = batches.reduce((sum, { batch }) => sum + batch.records, 0);
  const what = `${counted(batches.length, "batch", "batches")}, ${counted(records, "record")}`;
  return [what, ...parts].join(" · ");
}

// The attempts of a run of Airflow, and what each has cost.

import { airflowLink, badge, card, element, table } from "./dom.js";
import { bytes, duration, time } from "./format.js";

const UNKNOWN = "–";
const WHAT =
  "CPU time and memory of all processes on the driver's host. They are known for eight days, and " +
  "not for an attempt whose driver was killed.";

const COLUMNS = [
  { title: "Attempt", cell: ({ tried }) => (tried ? airflowLink(tried.log, tried.number) : "1") },
  { title: "State", cell: stateCell },
  { title: "Began", cell: (attempt) => time(attempt.began) },
  { title: "Took", number: true, cell: (attempt) => duration(seconds(attempt)) },
  { title: "CPU time", number: true, cell: ({ cost }) => known(cost?.cpu_seconds, duration) },
  { title: "Cores used", number: true, cell: coresCell },
  { title: "Most memory", number: true, cell: ({ cost }) => known(cost?.memory_bytes, bytes) },
  { title: "State afterwards", number: true, cell: ({ cost }) => known(cost?.state_bytes, bytes) },
  { title: "Host", cell: ({ cost }) => cost?.host ?? UNKNOWN },
  { title: "Sluice", cell: ({ cost }) => cost?.version ?? UNKNOWN },
];

// `run`: a run of Airflow; `costs`: the finished runs in the ledger that are its attempts.
export function attemptsCard(run, costs) {
  const attempts = attemptsOf(run, costs);
  return card(
    "Attempts",
    table(COLUMNS, attempts, { label: "Attempts", empty: "No attempt has started." }),
    element("p", { class: "quiet" }, WHAT),
  );
}

// { tried, cost, began, ended } of each attempt, oldest first: what Airflow and the ledger know.
function attemptsOf(run, costs) {
  const started = run.attempts.filter((tried) => tried.started_at);
  const attempts = started.map((tried) => {
    const cost = costs.find((each) => isOf(each, tried)) ?? null;
    return { tried, cost, began: tried.started_at, ended: tried.ended_at };
  });
  if (attempts.length) return attempts;
  return costs.map((cost) => ({ tried: null, cost, began: cost.began_at, ended: cost.ended_at }));
}

// Whether a driver ran in an attempt: Airflow begins before the driver, and ends after it.
function isOf(cost, tried) {
  const until = tried.ended_at ? Date.parse(tried.ended_at) : Date.now();
  const ended = Date.parse(cost.ended_at);
  return ended > Date.parse(tried.started_at) && ended <= until + 1000;
}

function stateCell({ tried, cost }) {
  if (tried) return badge(tried.state, tried.state);
  return outcomeBadge(cost.outcome);
}

// The outcome of a run in the ledger, in Airflow's words.
export function outcomeBadge(outcome) {
  const state = outcome === "failed" ? "failed" : "success";
  return badge(state, state);
}

function seconds({ began, ended }) {
  return ended ? (Date.parse(ended) - Date.parse(began)) / 1000 : null;
}

function coresCell(attempt) {
  const took = seconds(attempt);
  return known(attempt.cost?.cpu_seconds, (cpu) => (took > 0 ? (cpu / took).toFixed(2) : UNKNOWN));
}

const known = (value, format) => (value === null || value === undefined ? UNKNOWN : format(value));

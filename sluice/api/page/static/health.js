// The health of pipelines and their failures, in texts that all views share.

import { part } from "./api.js";
import { airflowLink, badge, element, link } from "./dom.js";
import { ago, duration, number, time } from "./format.js";

export const ORDER = [
  "broken",
  "failed",
  "waiting",
  "running",
  "held",
  "degraded",
  "behind",
  "idle",
  "not_started",
  "paused",
  "retired",
];
export const words = (health) => health.replaceAll("_", " ");
export const rejectedTotal = (counts) =>
  Object.values(counts).reduce((sum, count) => sum + count, 0);
const SHOWN_NAMES = 6; // of the pipelines with the same failure
const pipelinePath = (name) => `#/pipelines/${part(name)}`;

export function health(pipeline) {
  const shown = [badge(words(pipeline.health), pipeline.health)];
  if (pipeline.held_since) {
    const since = time(pipeline.held_since);
    shown.push(" ", badge("held back", "held"), " by a transaction since ", since);
  }
  if (pipeline.paused) shown.push(" ", badge(pipeline.pause ? "DAG paused" : "paused"));
  return shown;
}

// Why a pipeline is paused, by whom and since when.
export function whyPaused({ pause }) {
  if (!pause) return null;
  const who = pause.by ? `Paused by ${pause.by}, ` : "Paused, ";
  return [who, ago(pause.at), `: ${pause.reason}`];
}

export function unread(pipeline) {
  if (pipeline.unread === null) {
    const text = pipeline.health === "not_started" ? "–" : "unknown";
    return element("span", { title: pipeline.lag_error }, text);
  }
  return element(
    "span",
    { title: unreadByPartition(pipeline).join("\n") },
    number(pipeline.unread),
  );
}

// A text for each partition with unread records, the most first.
export function unreadByPartition(pipeline) {
  const behind = pipeline.lag.filter((partition) => partition.unread);
  behind.sort((a, b) => b.unread - a.unread);
  return behind.map(
    ({ topic, partition, unread: count }) => `${topic}/${partition}: ${number(count)}`,
  );
}

// The seconds that a run took; null before its end.
export function took(run) {
  if (!run.started_at || !run.ended_at) return null;
  return (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000;
}

export const tookText = (run) => (took(run) === null ? "" : `, took ${duration(took(run))}`);

export function lastRun(run) {
  if (!run) return "none";
  return [
    badge(run.state, run.state),
    " ",
    run.action !== "run" && `${run.action} `,
    run.started_at ? ago(run.started_at) : "",
    tookText(run),
    " ",
    airflowLink(run.log, "log"),
  ];
}

// The problems that need a person, one line for each cause, the worst first.
export function failures(pipelines) {
  const all = [];
  for (const pipeline of pipelines) {
    for (const failure of pipeline.failures) all.push({ pipeline, failure });
  }
  const causes = Map.groupBy(all, causeOf);
  const lines = [...causes.values()].map(failureLine);
  if (!lines.length) return null;
  return element(
    "div",
    { class: "trouble", role: "alert", "aria-label": "Failures", id: "failures" },
    element("ul", {}, lines),
  );
}

// A text that is equal for failures with the same cause: pipelines' names are replaced in it.
function causeOf({ pipeline, failure: { kind, host, title, detail, next_step: next } }) {
  const texts = [detail, next].map((text) => withoutName(text, pipeline.pipeline));
  return JSON.stringify([kind, host, title, ...texts]);
}

const withoutName = (text, name) =>
  text.replaceAll(/[\w-]+/g, (word) => (word === name ? "NAME" : word));

// A failure of one pipeline, or of several pipelines with the same cause.
function failureLine(same) {
  const [{ pipeline, failure }] = same;
  const names = same.map((each) => each.pipeline.pipeline);
  const since = same.map((each) => each.failure.at).sort()[0];
  const alone = same.length === 1;
  const shown = (text) => (alone ? text : withoutName(text, names[0]));
  const more = [shown(failure.next_step), alone && failure.outlook].filter(Boolean).join(" ");
  return element(
    "li",
    {},
    element(
      "div",
      {},
      whose(names),
      ", ",
      ago(since),
      `: ${failure.title}. ${shown(failure.detail)} `,
      more && element("div", { class: "next" }, more),
    ),
    alone && step(pipeline, failure),
  );
}

function whose(names) {
  if (names.length === 1) return link(pipelinePath(names[0]), element("b", {}, names[0]));
  const shown = names.slice(0, SHOWN_NAMES);
  const links = shown.map((name, index) => [index > 0 && ", ", link(pipelinePath(name), name)]);
  const more = names.length > shown.length && ` and ${names.length - shown.length} more`;
  return [element("b", {}, `${number(names.length)} pipelines`), " (", links, more, ")"];
}

// The link of a failure, to the place where a person finds out more.
function step(pipeline, failure) {
  const path = pipelinePath(pipeline.pipeline);
  const run = pipeline.last_run;
  if (run && run.state === "failed") return airflowLink(run.log, "Open the log");
  const [target, text] = {
    rejections: [`${path}/dead-letters`, "Look at dead letters"],
    host: [`${path}/shards`, "Look at shards"],
    slot: [`${path}/runs`, "Look at runs"],
    run: [`${path}/runs`, "Look at runs"],
    lease: [`${path}/runs`, "Look at runs"],
    registry: [`${path}/runs`, "Look at runs"],
  }[failure.kind] ?? [path, "Look at the pipeline"];
  return link(target, text);
}

// What a pipeline that has never run waits for.
export function awaited({ lag_error: error }) {
  if (error === "Nothing has been read yet.") return "";
  const cause = error.replace(" The pipeline has never read from there.", "");
  return cause.replace(/ (do(es)? not exist)\.$/, " $1 yet.");
}

// The health of pipelines, and what is wrong with them, in the words of all views.

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
const pipelinePath = (name) => `#/pipelines/${part(name)}`;

export function health(pipeline) {
  const held = pipeline.held_since && [
    " ",
    badge("held back", "held"),
    " by a transaction since ",
    time(pipeline.held_since),
  ];
  return [
    badge(words(pipeline.health), pipeline.health),
    held,
    pipeline.paused ? [" ", badge(pipeline.pause ? "DAG paused" : "paused")] : null,
  ];
}

// Why a pipeline is paused, by whom and since when.
export function whyPaused({ pause }) {
  return (
    pause && [pause.by ? `Paused by ${pause.by}, ` : "Paused, ", ago(pause.at), `: ${pause.reason}`]
  );
}

export function unread(pipeline) {
  if (pipeline.unread === null)
    return element(
      "span",
      { title: pipeline.lag_error },
      pipeline.health === "not_started" ? "–" : "unknown",
    );
  const behind = pipeline.lag.filter((partition) => partition.unread);
  return element(
    "span",
    {
      title: behind
        .map(({ topic, partition, unread: count }) => `${topic}/${partition}: ${number(count)}`)
        .join("\n"),
    },
    number(pipeline.unread),
  );
}

export function lastRun(run) {
  if (!run) return "none";
  const took =
    run.started_at && run.ended_at
      ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000
      : null;
  return [
    badge(run.state, run.state),
    " ",
    run.action !== "run" && `${run.action} `,
    run.started_at ? ago(run.started_at) : "",
    took !== null && `, took ${duration(took)}`,
    " ",
    airflowLink(run.log, "log"),
  ];
}

// What needs a person, one line for each cause, the worst first.
export function failures(pipelines) {
  const all = pipelines.flatMap((pipeline) =>
    pipeline.failures.map((failure) => ({ pipeline, failure })),
  );
  const causes = Map.groupBy(all, ({ failure: { kind, host, title, detail, next_step } }) =>
    JSON.stringify([kind, host, title, detail, next_step]),
  );
  const lines = [...causes.values()].map((same) => failureLine(same));
  return lines.length
    ? element(
        "div",
        { class: "trouble", role: "alert", "aria-label": "Failures", id: "failures" },
        element("ul", {}, lines),
      )
    : null;
}

// What is wrong with a pipeline, or with several pipelines for the same reason.
function failureLine(same) {
  const [{ pipeline, failure }] = same;
  const names = same.map((each) => each.pipeline.pipeline);
  const since = same.map((each) => each.failure.at).sort()[0];
  const alone = same.length === 1;
  const who = alone
    ? link(pipelinePath(names[0]), element("b", {}, names[0]))
    : [
        element("b", {}, `${names.length} pipelines`),
        " (",
        names.map((name, index) => [index > 0 && ", ", link(pipelinePath(name), name)]),
        ")",
      ];
  const more = [failure.next_step, alone && failure.outlook].filter(Boolean).join(" ");
  return element(
    "li",
    {},
    element(
      "div",
      {},
      who,
      ", ",
      ago(since),
      `: ${failure.title}. ${failure.detail} `,
      more && element("div", { class: "next" }, more),
    ),
    alone && step(pipeline, failure),
  );
}

// The button of a failure: the place where a person goes on.
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
export function awaited(pipeline) {
  return pipeline.lag_error === "Nothing has been read yet."
    ? ""
    : pipeline.lag_error
        .replace(" The pipeline has never read from there.", "")
        .replace(/ (do(es)? not exist)\.$/, " $1 yet.");
}

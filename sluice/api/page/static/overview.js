// All pipelines, the worst first.

import { get, part } from "./api.js";
import { airflowLink, badge, card, element, link, table } from "./dom.js";
import { ago, duration, number, time } from "./format.js";

const chosen = { health: "", text: "", by: "Health", down: false };
const ORDER = ["broken", "failed", "waiting", "running", "held", "degraded", "behind", "not_started", "retired", "idle"];

const words = (health) => health.replaceAll("_", " ");
export const rejectedTotal = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

export async function overview(_path, _search, { refresh }) {
  const pipelines = await get("/overview");
  const content = element("div", { class: "stack" });
  const draw = () => content.replaceChildren(...(pipelines.length ? filled(pipelines, draw) : [nothing()]));
  draw();
  return { title: "Pipelines", content: [element("h1", {}, "Pipelines"), content] };
}

function filled(pipelines, draw) {
  return [failures(pipelines), filters(pipelines, draw), list(pipelines, draw)].filter(Boolean);
}

function nothing() {
  return card("Nothing has run yet",
    element("p", {}, "A pipeline shows up here with its DAG. Put its file into the folder of pipelines, and create its topics."));
}

export function failures(pipelines) {
  const causes = Map.groupBy(
    pipelines.flatMap((pipeline) => pipeline.failures.map((failure) => ({ pipeline, failure }))),
    ({ failure: { kind, host, title, detail, next_step } }) => JSON.stringify([kind, host, title, detail, next_step]));
  const lines = [...causes.values()].map((same) => failureLine(same));
  return lines.length ? element("div", { class: "trouble", role: "alert", "aria-label": "Failures", id: "failures" }, element("ul", {}, lines)) : null;
}

// What is wrong with a pipeline, or with several pipelines for the same reason.
function failureLine(same) {
  const [{ pipeline, failure }] = same;
  const names = same.map((each) => each.pipeline.pipeline);
  const since = same.map((each) => each.failure.at).sort()[0];
  const run = pipeline.last_run;
  const alone = same.length === 1;
  const who = alone ? element("b", {}, names[0]) : [element("b", {}, `${names.length} pipelines`), ` (${names.join(", ")})`];
  const text = [`${failure.title}.`, failure.detail, failure.next_step, alone && failure.outlook].filter(Boolean).join(" ");
  return element("li", {}, who, ", ", ago(since), `: ${text} `,
    alone && run && run.state === "failed" && airflowLink(run.log, "Open the log"));
}

function filters(pipelines, draw) {
  const counts = new Map(ORDER.map((health) => [health, pipelines.filter((pipeline) => pipeline.health === health).length]));
  const choices = [["", "all", pipelines.length], ...ORDER.map((health) => [health, words(health), counts.get(health)])];
  const text = element("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", value: chosen.text });
  text.addEventListener("input", () => {
    chosen.text = text.value;
    draw();
    document.querySelector("input[type=search]").focus();
    document.querySelector("input[type=search]").setSelectionRange(text.value.length, text.value.length);
  });
  return element("div", { class: "filters" },
    element("div", { role: "group", "aria-label": "Health", class: "choices" }, choices.filter(([value, , count]) => count || !value).map(([value, name, count]) =>
      element("button", { type: "button", "aria-pressed": String(chosen.health === value), class: `choice ${value}`, onclick: () => { chosen.health = value; draw(); } },
        `${name} `, element("b", {}, count)))), text);
}

const COLUMNS = [
  { title: "Pipeline", cell: (pipeline) => link(`#/pipelines/${part(pipeline.pipeline)}`, pipeline.pipeline), sort: (pipeline) => pipeline.pipeline },
  { title: "Health", cell: (pipeline) => health(pipeline), sort: (pipeline) => ORDER.indexOf(pipeline.health) },
  { title: "Unread", number: true, cell: (pipeline) => lag(pipeline), sort: (pipeline) => pipeline.unread ?? -1 },
  { title: "Newest snapshot", cell: (pipeline) => (pipeline.snapshot ? [element("code", {}, pipeline.snapshot.id), " ", ago(pipeline.snapshot.published_at)] : "none"), sort: (pipeline) => pipeline.snapshot?.published_at ?? "" },
  { title: "Last run", cell: (pipeline) => lastRun(pipeline.last_run), sort: (pipeline) => pipeline.last_run?.started_at ?? "" },
  { title: "Dead letters, 24 h", number: true, cell: (pipeline) => letters(pipeline), sort: (pipeline) => rejectedTotal(pipeline.dead_letters) },
];

export function health(pipeline) {
  const held = pipeline.held_since && [" ", badge("held back", "held"), " by a transaction since ", time(pipeline.held_since)];
  return [badge(words(pipeline.health), pipeline.health), held, pipeline.paused ? [" ", badge("paused")] : null];
}

export function lag(pipeline) {
  if (pipeline.unread === null) return element("span", { title: pipeline.lag_error }, "unknown");
  const behind = pipeline.lag.filter((partition) => partition.unread);
  return element("span", { title: behind.map(({ topic, partition, unread }) => `${topic}/${partition}: ${number(unread)}`).join("\n") }, number(pipeline.unread));
}

export function lastRun(run) {
  if (!run) return "none";
  const took = run.started_at && run.ended_at ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000 : null;
  return [badge(run.state, run.state), " ", run.action !== "run" && `${run.action} `, run.started_at ? ago(run.started_at) : "", took !== null && `, took ${duration(took)}`, " ", airflowLink(run.log, "log")];
}

function letters(pipeline) {
  const count = rejectedTotal(pipeline.dead_letters);
  const reasons = Object.entries(pipeline.dead_letters).map(([reason, records]) => `${reason}: ${number(records)}`).join("\n");
  return count ? element("a", { href: `#/pipelines/${part(pipeline.pipeline)}/dead-letters`, title: reasons }, number(count)) : "0";
}

function list(pipelines, draw) {
  const text = chosen.text.toLowerCase();
  const rows = pipelines.filter((pipeline) => (!chosen.health || pipeline.health === chosen.health) && pipeline.pipeline.toLowerCase().includes(text));
  const column = COLUMNS.find(({ title }) => title === chosen.by);
  const sign = chosen.down ? -1 : 1;
  rows.sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    return a < b ? -sign : a > b ? sign : 0;
  });
  const choose = (by) => {
    chosen.down = chosen.by === by.title ? !chosen.down : Boolean(by.number);
    chosen.by = by.title;
    draw();
  };
  return element("section", { class: "card" }, table(COLUMNS, rows, { label: "Pipelines", empty: "No pipeline matches.", sorting: { by: chosen.by, down: chosen.down, choose } }));
}

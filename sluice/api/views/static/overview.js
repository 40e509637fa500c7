// All pipelines, the worst first.

import { get, part } from "./api.js";
import { airflowLink, badge, card, element, link, table } from "./dom.js";
import { ago, duration, number } from "./format.js";

const chosen = { health: "", text: "", by: "Health", down: false };
const ORDER = ["broken", "failed", "running", "behind", "idle"];

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

function failures(pipelines) {
  const lines = pipelines.flatMap((one) => one.failures.map((failure) => failureLine(one, failure)));
  return lines.length ? element("ul", { class: "trouble", role: "alert", "aria-label": "Failures", id: "failures" }, lines) : null;
}

export function failureLine(pipeline, failure) {
  const what = pipeline.health === "broken" && !failure.job ? "cannot be loaded" : "failed";
  const run = pipeline.last_run;
  return element("li", {},
    element("b", {}, [pipeline.pipeline, failure.job].filter(Boolean).join(" / ")), ` ${what}, `, ago(failure.at),
    `: ${failure.title}. ${failure.detail} `, run && run.state === "failed" && airflowLink(run.log, "Open the log"));
}

function filters(pipelines, draw) {
  const counts = new Map(ORDER.map((health) => [health, pipelines.filter((one) => one.health === health).length]));
  const choices = [["", "all", pipelines.length], ...ORDER.map((health) => [health, health, counts.get(health)])];
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
  { title: "Pipeline", cell: (one) => link(`#/pipelines/${part(one.pipeline)}`, one.pipeline), sort: (one) => one.pipeline },
  { title: "Health", cell: (one) => health(one), sort: (one) => ORDER.indexOf(one.health) },
  { title: "Unread", number: true, cell: (one) => lag(one), sort: (one) => one.unread ?? -1 },
  { title: "Newest snapshot", cell: (one) => (one.snapshot ? [element("code", {}, one.snapshot.id), " ", ago(one.snapshot.published_at)] : "none"), sort: (one) => one.snapshot?.published_at ?? "" },
  { title: "Last run", cell: (one) => lastRun(one.last_run), sort: (one) => one.last_run?.started_at ?? "" },
  { title: "Dead letters, 24 h", number: true, cell: (one) => letters(one), sort: (one) => rejectedTotal(one.dead_letters) },
];

export function health(one) {
  return [badge(one.health, one.health), one.paused ? [" ", badge("paused")] : null];
}

export function lag(one) {
  if (one.unread === null) return element("span", { title: one.lag_error }, "unknown");
  const behind = one.lag.filter((partition) => partition.unread);
  return element("span", { title: behind.map((each) => `${each.topic}/${each.partition}: ${number(each.unread)}`).join("\n") }, number(one.unread));
}

export function lastRun(run) {
  if (!run) return "none";
  const took = run.started_at && run.ended_at ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000 : null;
  return [badge(run.state, run.state), " ", run.action !== "run" && `${run.action} `, run.started_at ? ago(run.started_at) : "", took !== null && `, took ${duration(took)}`, " ", airflowLink(run.log, "log")];
}

function letters(one) {
  const count = rejectedTotal(one.dead_letters);
  const reasons = Object.entries(one.dead_letters).map(([reason, each]) => `${reason}: ${number(each)}`).join("\n");
  return count ? element("a", { href: `#/pipelines/${part(one.pipeline)}/dead-letters`, title: reasons }, number(count)) : "0";
}

function list(pipelines, draw) {
  const text = chosen.text.toLowerCase();
  const rows = pipelines.filter((one) => (!chosen.health || one.health === chosen.health) && one.pipeline.toLowerCase().includes(text));
  const column = COLUMNS.find(({ title }) => title === chosen.by);
  const sign = chosen.down ? -1 : 1;
  rows.sort((one, other) => {
    const [a, b] = [column.sort(one), column.sort(other)];
    return a < b ? -sign : a > b ? sign : 0;
  });
  const choose = (by) => {
    chosen.down = chosen.by === by.title ? !chosen.down : Boolean(by.number);
    chosen.by = by.title;
    draw();
  };
  return element("section", { class: "card" }, table(COLUMNS, rows, { label: "Pipelines", empty: "No pipeline matches.", sorting: { by: chosen.by, down: chosen.down, choose } }));
}

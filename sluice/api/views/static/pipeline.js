// One pipeline: what it does now, what it did, and the actions on its runs and generations.

import { address, get, part, post } from "./api.js";
import { chart } from "./chart.js";
import { countsOf, drawing } from "./drawing.js";
import { airflowLink, badge, button, card, confirm, element, link, table } from "./dom.js";
import { ago, bytes, duration, number, short, time } from "./format.js";
import { failureLine, health, lag, lastRun, rejectedTotal } from "./overview.js";

const live = new Map(); // pipeline → [[epoch ms, unread]], since the page was opened
const pictures = new Map();
const ACTIONS = {
  run: ["Run now", "Read all unread records", "The pipeline's DAG is triggered. Without unread records the run changes nothing."],
  replay: ["Replay…", "Replay into a new generation", "The state is built again from the topics, in a generation beside the current one. Queries read the current one until you promote the new one."],
  promote: ["Promote…", "Make the new generation the current one", "It first reads what was published since. Then all queries read it, and the old generation is removed with the next replay."],
  drop: ["Drop…", "Remove the new generation", "The current generation stays as it is."],
};

export async function pipeline([name], _search, { refresh }) {
  const path = `/pipelines/${part(name)}`;
  const [all, batches, runs, generations, workers, allStores] = await Promise.all([
    get("/overview"), optional(get(`${path}/batches`, { limit: 100 })), optional(get(`${path}/runs`)),
    optional(get(`${path}/generations`)), optional(get(`${path}/workers`)), get("/stores", { entries: true }),
  ]);
  const one = all.find((each) => each.pipeline === name);
  if (!one) return { title: name, content: missing(name) };
  const own = allStores.filter((store) => store.pipeline === name);
  const act = (action) => start(name, action, refresh);
  return {
    title: name,
    affects: name,
    content: [
      heading(one, act),
      element("div", { role: "status", id: "done" }, ""),
      one.failures.length ? element("ul", { class: "trouble", role: "alert", "aria-label": "Failures" }, one.failures.map((failure) => failureLine(one, failure))) : null,
      figures(one, batches),
      await topology(name, generations, batches),
      charts(one, batches),
      stores(name, own),
      batchList(batches),
      runList(runs),
      generationList(name, generations, own, one.may_edit, act),
      shards(workers),
      await panel(name),
    ],
  };
}

const optional = (answer) => answer.catch((error) => (error.status === 404 ? [] : Promise.reject(error)));

function missing(name) {
  return [element("h1", {}, name), card("Not a pipeline of Sluice",
    element("p", {}, "Either this DAG is not a pipeline, or you may not read it."), element("p", {}, link("#/", "All pipelines")))];
}

function heading(one, act) {
  return element("div", { class: "title" },
    element("h1", {}, one.pipeline, " ", health(one)),
    element("div", { class: "actions" },
      link(`#/pipelines/${part(one.pipeline)}/dead-letters`, "Dead letters"),
      airflowLink(`${address("").replace(/\/sluice\/v1$/, "")}/dags/${part(one.pipeline)}`, "DAG"),
      one.may_edit && button(ACTIONS.run[0], () => act("run"), { class: "primary" }),
      one.may_edit && button(ACTIONS.replay[0], () => act("replay"))));
}

async function start(name, action, refresh) {
  const [, title, text] = ACTIONS[action];
  if (!(await confirm(`${title}: ${name}`, text, title))) return;
  let message;
  try {
    const started = await post(`/pipelines/${part(name)}/runs`, { action });
    message = ["Run ", airflowLink(started.log, started.run), " is queued."];
  } catch (error) {
    message = [error.message];
  }
  await refresh();
  document.getElementById("done")?.replaceChildren(...message);
}

function figure(label, value, note = "") {
  return element("div", { class: "card figure" }, element("span", { class: "quiet" }, label), element("b", {}, value), element("small", {}, note));
}

function figures(one, batches) {
  const newest = batches[0];
  const rejected = rejectedTotal(one.dead_letters);
  return element("section", { class: "figures", "aria-label": "At a glance" },
    figure("Unread records", lag(one), one.unread === null ? one.lag_error : partitions(one)),
    figure("Newest snapshot", one.snapshot ? ago(one.snapshot.published_at) : "none", one.snapshot ? element("span", {}, `snapshot ${one.snapshot.id}, `, time(one.snapshot.published_at)) : "before the first run"),
    figure("Throughput", newest?.records_per_second ? `${short(newest.records_per_second)} / s` : "–", newest ? `${number(newest.records)} records in ${duration(newest.seconds)}` : ""),
    figure("Dead letters, 24 h", number(rejected), Object.entries(one.dead_letters).map(([reason, count]) => `${reason} ${number(count)}`).join(", ")),
    figure("Last run", one.last_run ? badge(one.last_run.state, one.last_run.state) : "none", one.last_run && element("span", {}, lastRun(one.last_run).slice(1))));
}

function partitions(one) {
  const behind = one.lag.filter((each) => each.unread).sort((a, b) => b.unread - a.unread);
  if (!behind.length) return "everything is read";
  const shown = behind.slice(0, 3).map((each) => `${each.topic}/${each.partition}: ${number(each.unread)}`).join(", ");
  return behind.length > 3 ? `${shown} and ${behind.length - 3} more partitions` : shown;
}

async function topology(name, generations, batches) {
  const key = `${name} ${generations.map((one) => one.generation)}`;
  if (!pictures.has(key)) {
    const answer = await fetch(address(`/pipelines/${part(name)}/topology?format=svg`));
    pictures.set(key, answer.ok ? await answer.text() : "");
  }
  const drawn = pictures.get(key) ? drawing(name, pictures.get(key), countsOf(batches)) : null;
  if (!drawn) return card("Topology", element("p", { class: "quiet" }, "It has not been drawn yet."));
  return card("Topology", drawn, element("p", { class: "quiet" }, `The numbers count the records of the ${number(batches.length)} batches listed below.`));
}

function charts(one, batches) {
  const inOrder = [...batches].reverse();
  const at = (batch) => Date.parse(batch.published_at);
  const begun = (batch) => at(batch) - (batch.seconds ?? 0) * 1000;
  const samples = live.get(one.pipeline) ?? [];
  if (one.unread !== null) samples.push([Date.now(), one.unread]);
  live.set(one.pipeline, samples.slice(-200));
  const unread = [...inOrder.map((batch) => [begun(batch), batch.records]), ...samples];
  const age = inOrder.slice(1).map((batch, index) => [at(batch), Math.max((at(batch) - at(inOrder[index])) / 1000, 0)]);
  const rate = inOrder.filter((batch) => batch.records_per_second).map((batch) => [at(batch), batch.records_per_second]);
  const timed = inOrder.filter((batch) => batch.seconds !== null);
  return element("section", { class: "charts", "aria-label": "Over time" },
    chart("Unread records, when each batch began and now", [{ name: "unread", points: unread }]),
    chart("Age of the snapshot when the next one replaced it", [{ name: "age", points: age }], { format: duration }),
    chart("Records per second", [{ name: "records per second", points: rate }]),
    chart("Duration of each batch by phase", by(timed, "phases", at), { format: duration, bars: true }),
    chart("Late records by store", by(inOrder, "late", at), { bars: true }),
    chart("Rejected records by reason", by(inOrder.map((batch) => ({ ...batch, rejected: sum(batch.dead_letters, batch.dropped) })), "rejected", at), { bars: true }));
}

function sum(...counts) {
  const all = {};
  for (const [name, count] of counts.flatMap(Object.entries)) all[name] = (all[name] ?? 0) + count;
  return all;
}

function by(batches, member, at) {
  const names = [...new Set(batches.flatMap((batch) => Object.keys(batch[member])))].sort();
  return names.map((name) => ({ name, points: batches.map((batch) => [at(batch), batch[member][name] ?? 0]) }));
}

export const storePath = (pipeline, store) => `#/pipelines/${part(pipeline)}/stores/${part(store)}`;

function stores(name, own) {
  return card("Stores", table([
    { title: "Store", cell: (one) => link(storePath(name, one.store), one.store) },
    { title: "Kind", cell: (one) => badge(kind(one)) },
    { title: "Value", cell: (one) => element("code", {}, one.value) },
    { title: "Entries", number: true, cell: (one) => number(one.entries) },
    { title: "Workers", cell: (one) => workers(one.workers) },
    { title: "Snapshot", cell: (one) => (one.snapshot ? [element("code", {}, one.snapshot.id), " ", ago(one.snapshot.published_at)] : "none") },
  ], own, { label: "Stores", empty: "It has no stores." }));
}

export function kind(store) {
  if (store.kind !== "window") return store.kind === "global" ? "global table" : "keys";
  return store.window_ms === null ? "sessions" : `windows of ${duration(store.window_ms / 1000)}`;
}

export function workers(all) {
  const lost = all.filter((worker) => worker.status !== "ok");
  if (!all.length) return "–";
  if (!lost.length) return all.length === 1 ? "The worker answers" : `All ${all.length} workers answer`;
  return lost.map((worker) => badge(`worker ${worker.number}: ${worker.reason}`, "failed"));
}

const counts = (of) => Object.entries(of).map(([name, count]) => `${name} ${number(count)}`).join(", ") || "0";

function batchList(batches) {
  const rows = batches.slice(0, 20);
  return card("Batches with their audits", table([
    { title: "Snapshot", cell: (one) => element("code", { title: one.job }, one.snapshot) },
    { title: "Published", cell: (one) => time(one.published_at) },
    { title: "Records", number: true, cell: (one) => number(one.records) },
    { title: "Applied", number: true, cell: (one) => number(one.applied) },
    { title: "Late", cell: (one) => counts(one.late) },
    { title: "Dropped", cell: (one) => counts(one.dropped) },
    { title: "Dead letters", cell: (one) => counts(one.dead_letters) },
    { title: "Duration", number: true, cell: (one) => element("span", { title: Object.entries(one.phases).map(([name, seconds]) => `${name}: ${duration(seconds)}`).join("\n") }, duration(one.seconds)) },
    { title: "Audit", cell: (one) => (one.wrong.length ? badge(one.wrong.join("; "), "failed") : badge("balances", "success")) },
    { title: "Run", cell: (one) => (one.log ? airflowLink(one.log, "log") : "–") },
  ], rows, { label: "Batches", empty: "Nothing has been published yet." }));
}

function runList(runs) {
  return runs.length ? card("Runs", table([
    { title: "Run", cell: (one) => airflowLink(one.log, one.run) },
    { title: "State", cell: (one) => badge(one.state, one.state) },
    { title: "Action", cell: (one) => one.action },
    { title: "Began", cell: (one) => time(one.started_at) },
    { title: "Took", number: true, cell: (one) => duration(one.started_at && one.ended_at ? (Date.parse(one.ended_at) - Date.parse(one.started_at)) / 1000 : null) },
  ], runs, { label: "Runs" })) : null;
}

function generationList(name, generations, own, mayEdit, act) {
  const others = generations.filter((one) => !one.current);
  const content = table([
    { title: "Generation", cell: (one) => element("code", {}, one.generation) },
    { title: "State", cell: (one) => (one.current ? badge("current", "success") : badge("built beside it")) },
    { title: "Job", cell: (one) => one.job },
    { title: "Snapshot", cell: (one) => (one.snapshot ? [element("code", {}, one.snapshot.id), " ", ago(one.snapshot.published_at)] : "none") },
    { title: "Topology", cell: (one) => (one.current ? "" : one.same_topology ? "the same" : "changed") },
    { title: "Compare", cell: (one) => (one.current || !one.snapshot ? "" : one.stores.map((store) => [link(`${storePath(name, store)}?before=${generations.find((each) => each.current && each.job === one.job)?.snapshot?.id ?? ""}&after=${one.snapshot.id}`, store), " "])) },
  ], generations, { label: "Generations", empty: "Nothing has been published yet." });
  const actions = mayEdit && others.length ? element("div", { class: "actions" },
    button(ACTIONS.promote[0], () => act("promote"), { class: "primary" }), button(ACTIONS.drop[0], () => act("drop"))) : null;
  return card("Generations", content, actions);
}

function shards(all) {
  return card("Shards", table([
    { title: "Worker", cell: (one) => one.number },
    { title: "Job", cell: (one) => one.job },
    { title: "Served by", cell: (one) => (one.port ? `${one.host}:${one.port}` : "this server") },
    { title: "Size", number: true, cell: (one) => (one.bytes === null || one.bytes === undefined ? "–" : bytes(one.bytes)) },
    { title: "State", cell: (one) => (one.status === "ok" ? badge("ok", "success") : badge(one.reason || one.status, "failed")) },
  ], all, { label: "Shards", empty: "There are none yet." }));
}

// A panel that the pipeline brings along: the module PIPELINE_panel.js beside its file.
async function panel(name) {
  const url = address(`/../panels/${part(name)}.js`).replace("/v1/../", "/");
  const answer = await fetch(url);
  if (answer.status !== 200) return null;
  try {
    const module = await import(url);
    return await module.default({ get: (path) => fetch(address("").replace(/\/sluice\/v1$/, "") + path).then((reply) => reply.json()), card, chart, element, number, duration, time, table });
  } catch (error) {
    return card("Panel", element("p", { class: "quiet" }, `The panel of ${name} failed: ${error.message}`));
  }
}

// One pipeline: what it does now, what it did, and the actions on its runs and generations.

import { address, get, part, post } from "./api.js";
import { chart } from "./chart.js";
import { countsOf, drawing } from "./drawing.js";
import { airflowLink, badge, button, card, confirm, element, link, report, table } from "./dom.js";
import { ago, bytes, duration, number, short, time } from "./format.js";
import { failures, health, lag, lastRun, rejectedTotal } from "./overview.js";

const live = new Map(); // pipeline → [[epoch ms, unread]], since the page was opened
const pictures = new Map();
const ACTIONS = {
  run: ["Run now", "Read all unread records", "The pipeline's DAG is triggered. Without unread records the run changes nothing."],
  replay: ["Replay…", "Replay into a new generation", "The state is built again from the topics, in a generation beside the current one. Queries read the current one until you promote the new one. To replay a part, enter a time such as 2026-11-21T08:00:00 (UTC) or offsets such as orders/0/1200,orders/1/980. From can also be beginning.", [
    { name: "from", label: "From", note: "where the current generation began" }, { name: "until", label: "Until", note: "the newest snapshot" }]],
  promote: ["Promote…", "Make the new generation the current one", "A run first lets the new generation read what the current one has read since. Then all queries read the new generation. The next replay removes the old one."],
  drop: ["Drop…", "Remove the new generation", "The current generation stays as it is."],
};

export async function pipeline([name], _search, { refresh }) {
  const path = `/pipelines/${part(name)}`;
  const [all, batches, runs, generations, workers, allStores] = await Promise.all([
    get("/overview"), optional(get(`${path}/batches`, { limit: 100 })), optional(get(`${path}/runs`)),
    optional(get(`${path}/generations`)), optional(get(`${path}/workers`)), get("/stores", { entries: true }),
  ]);
  const overview = all.find(({ pipeline }) => pipeline === name);
  if (!overview) return { title: name, content: missing(name) };
  const own = allStores.filter((store) => store.pipeline === name);
  const act = (action) => start(name, action, refresh);
  return {
    title: name,
    affects: name,
    content: [
      heading(overview, act),
      element("div", { role: "status", id: "done" }, ""),
      failures([overview]),
      figures(overview, batches),
      await topology(name, generations, batches),
      charts(overview, batches),
      stores(name, own),
      batchList(batches),
      runList(runs),
      generationList(name, generations, own, overview.may_edit, act),
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

function heading(overview, act) {
  return element("div", { class: "title" },
    element("h1", {}, overview.pipeline, " ", health(overview)),
    element("div", { class: "actions" },
      link(`#/pipelines/${part(overview.pipeline)}/dead-letters`, "Dead letters"),
      airflowLink(`${address("").replace(/\/sluice\/v1$/, "")}/dags/${part(overview.pipeline)}`, "DAG"),
      overview.may_edit && button(ACTIONS.run[0], () => act("run"), { class: "primary" }),
      overview.may_edit && button(ACTIONS.replay[0], () => act("replay"))));
}

async function start(name, action, refresh) {
  const [, title, text, fields] = ACTIONS[action];
  const send = (given) => post(`/pipelines/${part(name)}/runs`, { action, ...Object.fromEntries(Object.entries(given).filter(([, point]) => point)) });
  await report(refresh, async () => {
    const started = await confirm(`${title}: ${name}`, text, title, { fields, send });
    return started && ["Run ", airflowLink(started.log, started.run), " is queued."];
  });
}

function figure(label, value, note = "") {
  return element("div", { class: "card figure" }, element("span", { class: "quiet" }, label), element("b", {}, value), element("small", {}, note));
}

function figures(overview, batches) {
  const newest = batches[0];
  const rejected = rejectedTotal(overview.dead_letters);
  return element("section", { class: "figures", "aria-label": "At a glance" },
    figure("Unread records", lag(overview), overview.unread === null ? overview.lag_error : partitions(overview)),
    figure("Newest snapshot", overview.snapshot ? ago(overview.snapshot.published_at) : "none", overview.snapshot ? element("span", {}, `snapshot ${overview.snapshot.id}, `, time(overview.snapshot.published_at)) : "before the first run"),
    figure("Throughput", newest?.records_per_second ? `${short(newest.records_per_second)} / s` : "–", newest ? `${number(newest.records)} records in ${duration(newest.seconds)}` : ""),
    figure("Dead letters, 24 h", number(rejected), Object.entries(overview.dead_letters).map(([reason, count]) => `${reason} ${number(count)}`).join(", ")),
    figure("Last run", overview.last_run ? badge(overview.last_run.state, overview.last_run.state) : "none", overview.last_run && element("span", {}, lastRun(overview.last_run).slice(1))));
}

function partitions(overview) {
  const behind = overview.lag.filter(({ unread }) => unread).sort((a, b) => b.unread - a.unread);
  if (!behind.length) return "everything is read";
  const shown = behind.slice(0, 3).map(({ topic, partition, unread }) => `${topic}/${partition}: ${number(unread)}`).join(", ");
  return behind.length > 3 ? `${shown} and ${behind.length - 3} more partitions` : shown;
}

async function topology(name, generations, batches) {
  const key = `${name} ${generations.map(({ generation }) => generation)}`;
  if (!pictures.has(key)) {
    const answer = await fetch(address(`/pipelines/${part(name)}/topology?format=svg`));
    pictures.set(key, answer.ok ? await answer.text() : "");
  }
  const drawn = pictures.get(key) ? drawing(name, pictures.get(key), countsOf(batches)) : null;
  if (!drawn) return card("Topology", element("p", { class: "quiet" }, "It has not been drawn yet."));
  return card("Topology", drawn, element("p", { class: "quiet" }, `The numbers count the records of the ${number(batches.length)} batches listed below.`));
}

function charts(overview, batches) {
  const inOrder = [...batches].reverse();
  const at = (batch) => Date.parse(batch.published_at);
  const begun = (batch) => at(batch) - (batch.seconds ?? 0) * 1000;
  const samples = live.get(overview.pipeline) ?? [];
  if (overview.unread !== null) samples.push([Date.now(), overview.unread]);
  live.set(overview.pipeline, samples.slice(-200));
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
    { title: "Store", cell: (store) => link(storePath(name, store.store), store.store) },
    { title: "Kind", cell: (store) => badge(kind(store)) },
    { title: "Value", cell: (store) => element("code", {}, store.value) },
    { title: "Entries", number: true, cell: (store) => number(store.entries) },
    { title: "Workers", cell: (store) => workers(store.workers) },
    { title: "Snapshot", cell: (store) => (store.snapshot ? [element("code", {}, store.snapshot.id), " ", ago(store.snapshot.published_at)] : "none") },
  ], own, { label: "Stores", empty: "It has no stores." }));
}

export function kind(store) {
  if (store.kind !== "window") return store.kind === "global" ? "global table" : "keys";
  if (store.window_ms !== null) return `windows of ${duration(store.window_ms / 1000)}`;
  // The generations of an earlier version of Sluice do not have the windows' definition, `store.windows`. In that
  // version, only sessions had no size.
  return store.windows === null || store.windows.startsWith("session") ? "sessions" : store.windows;
}

export function workers(all) {
  const lost = all.filter((worker) => worker.status !== "ok");
  if (!all.length) return "–";
  const degraded = all.filter((worker) => worker.standby);
  if (!lost.length && !degraded.length) return all.length === 1 ? "The worker answers" : `All ${all.length} workers answer`;
  return [
    ...lost.map((worker) => badge(`worker ${worker.number}: ${worker.reason}`, "failed")),
    ...degraded.map((worker) => badge(`worker ${worker.number}: only its standby answers. ${worker.reason}`, "degraded")),
  ];
}

const counts = (byName) => Object.entries(byName).map(([name, count]) => `${name} ${number(count)}`).join(", ") || "0";

function batchList(batches) {
  const rows = batches.slice(0, 20);
  return card("Batches with their audits", table([
    { title: "Snapshot", cell: (batch) => element("code", {}, batch.snapshot) },
    { title: "Published", cell: (batch) => time(batch.published_at) },
    { title: "Records", number: true, cell: (batch) => number(batch.records) },
    { title: "Applied", number: true, cell: (batch) => number(batch.applied) },
    { title: "Late", cell: (batch) => counts(batch.late) },
    { title: "Dropped", cell: (batch) => counts(batch.dropped) },
    { title: "Dead letters", cell: (batch) => counts(batch.dead_letters) },
    { title: "Duration", number: true, cell: (batch) => element("span", { title: Object.entries(batch.phases).map(([name, seconds]) => `${name}: ${duration(seconds)}`).join("\n") }, duration(batch.seconds)) },
    { title: "Audit", cell: (batch) => (batch.wrong.length ? badge(batch.wrong.join("; "), "failed") : badge("balances", "success")) },
    { title: "Run", cell: (batch) => (batch.log ? airflowLink(batch.log, "log") : "–") },
  ], rows, { label: "Batches", empty: "Nothing has been published yet." }));
}

function runList(runs) {
  return runs.length ? card("Runs", table([
    { title: "Run", cell: (run) => airflowLink(run.log, run.run) },
    { title: "State", cell: (run) => badge(run.state, run.state) },
    { title: "Action", cell: (run) => run.action },
    { title: "Began", cell: (run) => time(run.started_at) },
    { title: "Took", number: true, cell: (run) => duration(run.started_at && run.ended_at ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000 : null) },
  ], runs, { label: "Runs" })) : null;
}

function generationList(name, generations, own, mayEdit, act) {
  const others = generations.filter((generation) => !generation.current);
  const content = table([
    { title: "Generation", cell: (generation) => element("code", {}, generation.generation) },
    { title: "State", cell: (generation) => (generation.current ? badge("current", "success") : badge("built beside it")) },
    { title: "Snapshot", cell: (generation) => (generation.snapshot ? [element("code", {}, generation.snapshot.id), ", ", ago(generation.snapshot.published_at)] : "none") },
    { title: "Topology", cell: (generation) => (generation.current ? "" : generation.same_topology ? "the same" : "changed") },
    { title: "Compare", cell: (generation) => (generation.current || !generation.snapshot ? "" : generation.stores.map((store) => [link(`${storePath(name, store)}?before=${generations.find(({ current }) => current)?.snapshot?.id ?? ""}&after=${generation.snapshot.id}`, store), " "])) },
  ], generations, { label: "Generations", empty: "Nothing has been published yet." });
  const actions = mayEdit && others.length ? element("div", { class: "actions" },
    button(ACTIONS.promote[0], () => act("promote"), { class: "primary" }), button(ACTIONS.drop[0], () => act("drop"))) : null;
  return card("Generations", content, actions);
}

function shards(all) {
  return card("Shards", table([
    { title: "Worker", cell: (worker) => worker.number },
    { title: "Served by", cell: (worker) => (worker.port ? `${worker.host}:${worker.port}` : "this server") },
    { title: "Size", number: true, cell: (worker) => (worker.bytes === null || worker.bytes === undefined ? "–" : bytes(worker.bytes)) },
    { title: "State", cell: (worker) => (worker.status === "ok" ? badge("ok", "success") : worker.status === "degraded" ? badge(`degraded: only its standby answers. ${worker.reason}`, "degraded") : badge(worker.reason || worker.status, "failed")) },
    { title: "Standby", cell: (worker) => (worker.standby ? `${worker.standby.host}:${worker.standby.port}, ${worker.standby.snapshot ? `snapshot ${worker.standby.snapshot}` : "no copy yet"}` : "–") },
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

// A pipeline's generations, and its shards on the hosts of their workers.

import { actionButton } from "./actions.js";
import { get, optional, part } from "./api.js";
import { badge, card, element, link, table } from "./dom.js";
import { ago, bytes } from "./format.js";
import { tabView } from "./pipeline.js";
import { storePath } from "./store_words.js";

export const shardsTab = tabView("shards", async (context) => {
  const { name, overview } = context;
  const path = `/pipelines/${part(name)}`;
  if (!overview.snapshot)
    return card("Shards", element("p", { class: "quiet" }, "There are none before the first run."));
  const [generations, own] = await Promise.all([
    optional(get(`${path}/generations`)),
    optional(get(`${path}/workers`)),
  ]);
  return [generationList(context, generations), shards(own)];
});

function generationList(context, generations) {
  const current = generations.find((generation) => generation.current);
  const columns = [
    { title: "Generation", cell: (generation) => element("code", {}, generation.generation) },
    { title: "State", cell: (generation) => stateOf(generation, current) },
    { title: "Snapshot", cell: snapshotOf },
  ];
  if (generations.length > 1)
    columns.push(
      { title: "Topology", cell: topologyOf },
      { title: "Compare", cell: (generation) => comparison(context.name, current, generation) },
    );
  const options = { label: "Generations", empty: "Nothing has been published yet." };
  const actions = element("div", { class: "actions" });
  if (generations.some((generation) => isNewer(generation, current)))
    actions.append(
      actionButton(context, "promote", { class: "primary" }),
      actionButton(context, "drop"),
    );
  if (generations.some((generation) => isEarlier(generation, current)))
    actions.append(actionButton(context, "roll_back"));
  const mayAct = context.overview.may_edit && actions.childElementCount > 0;
  return card("Generations", table(columns, generations, options), mayAct && actions);
}

const isNewer = (generation, current) => generation.generation > (current?.generation ?? 0);
const isEarlier = (generation, current) => generation.generation < (current?.generation ?? 0);

function stateOf(generation, current) {
  if (generation.current) return badge("current", "success");
  return badge(isEarlier(generation, current) ? "kept, to roll back" : "built beside it");
}

function snapshotOf({ snapshot }) {
  if (!snapshot) return "none";
  return [element("code", {}, snapshot.id), ", ", ago(snapshot.published_at)];
}

function topologyOf(generation) {
  if (generation.current) return "";
  return generation.same_topology ? "the same" : "changed";
}

// Links to the differences of each store between the current generation and another one.
function comparison(name, current, generation) {
  if (generation.current || !generation.snapshot) return "";
  const points = `?before=${current?.snapshot?.id ?? ""}&after=${generation.snapshot.id}`;
  return generation.stores.map((store) => [link(storePath(name, store) + points, store), " "]);
}

function shardState(worker) {
  if (worker.status === "ok") return badge("ok", "success");
  if (worker.status === "degraded")
    return badge(`degraded: only its standby answers. ${worker.reason}`, "degraded");
  return badge(worker.reason || worker.status, "failed");
}

const placeOf = (worker) => (worker.port ? `${worker.host}:${worker.port}` : "this server");

const sizeOf = (worker) =>
  worker.bytes === null || worker.bytes === undefined ? "–" : bytes(worker.bytes);

function standbyOf({ standby }) {
  if (!standby) return "–";
  const copy = standby.snapshot ? `snapshot ${standby.snapshot}` : "no copy yet";
  return `${standby.host}:${standby.port}, ${copy}`;
}

function shards(workers) {
  const columns = [
    { title: "Worker", cell: (worker) => worker.number },
    { title: "Served by", cell: placeOf },
    { title: "Size", number: true, cell: sizeOf },
    { title: "State", cell: shardState },
    { title: "Standby", cell: standbyOf },
  ];
  return card("Shards", table(columns, workers, { label: "Shards", empty: "There are none yet." }));
}

// The stores of all pipelines, and those of one pipeline.

import { get, part } from "./api.js";
import { badge, element, link, table } from "./dom.js";
import { ago, number } from "./format.js";
import { tabView } from "./pipeline.js";
import { fieldNames, kind, storePath, workers } from "./store_words.js";

function snapshotOf({ snapshot }) {
  if (!snapshot) return "none";
  return [element("code", {}, snapshot.id), " ", ago(snapshot.published_at)];
}

const NAME = {
  title: "Store",
  cell: (store) => link(storePath(store.pipeline, store.store), store.store),
};
const PIPELINE = {
  title: "Pipeline",
  cell: (store) => link(`#/pipelines/${part(store.pipeline)}`, store.pipeline),
};
const KIND = { title: "Kind", cell: (store) => badge(kind(store)) };
const KEY = { title: "Key", cell: (store) => element("code", {}, store.key) };
const FIELDS = { title: "Value", cell: (store) => fieldNames(store.value) };
const STATE = [
  { title: "Entries", number: true, cell: (store) => number(store.entries) },
  { title: "Workers", cell: (store) => workers(store.workers) },
  { title: "Snapshot", cell: snapshotOf },
];

function list(columns, stores, empty) {
  return element("section", { class: "card" }, table(columns, stores, { label: "Stores", empty }));
}

export async function stores() {
  const all = await get("/stores", { entries: true });
  const columns = [NAME, PIPELINE, KIND, KEY, ...STATE];
  const empty = "No pipeline has published a store yet.";
  return { title: "Stores", content: [element("h1", {}, "Stores"), list(columns, all, empty)] };
}

export const pipelineStores = tabView("stores", async ({ name }) => {
  const own = await get("/stores", { entries: true, pipeline: name });
  return list([NAME, KIND, KEY, FIELDS, ...STATE], own, "The pipeline has published no store yet.");
});

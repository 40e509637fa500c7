// What all views say about stores.

import { part } from "./api.js";
import { badge } from "./dom.js";
import { duration } from "./format.js";

export const storePath = (pipeline, store) => `#/pipelines/${part(pipeline)}/stores/${part(store)}`;

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

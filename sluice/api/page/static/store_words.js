// Texts about stores that several views share.

import { part } from "./api.js";
import { badge, element } from "./dom.js";
import { duration } from "./format.js";

export const storePath = (pipeline, store) => `#/pipelines/${part(pipeline)}/stores/${part(store)}`;

export function kind(store) {
  if (store.kind !== "window") return store.kind === "global" ? "global table" : "keys";
  if (store.window_ms !== null) return `windows of ${duration(store.window_ms / 1000)}`;
  // The generations of an earlier version of Sluice do not have the windows' definition,
  // `store.windows`. In that version, only sessions had no size.
  return store.windows === null || store.windows.startsWith("session") ? "sessions" : store.windows;
}

export function workers(all) {
  const lost = all.filter((worker) => worker.status !== "ok");
  if (!all.length) return "–";
  const degraded = all.filter((worker) => worker.standby);
  if (!lost.length && !degraded.length)
    return all.length === 1 ? "The worker answers" : `All ${all.length} workers answer`;
  return [
    ...lost.map((worker) => badge(`worker ${worker.number}: ${worker.reason}`, "failed")),
    ...degraded.map((worker) =>
      badge(`worker ${worker.number}: only its standby answers. ${worker.reason}`, "degraded"),
    ),
  ];
}

// The fields of a struct by name; another type as it is.
export function fieldNames(type) {
  const inner = /^struct<(.*)>$/is.exec(type)?.[1];
  if (inner === undefined) return element("code", {}, type.toLowerCase());
  const names = [];
  let depth = 0;
  let name = "";
  let isName = true;
  for (const character of inner) {
    if ("<(".includes(character)) depth += 1;
    if (">)".includes(character)) depth -= 1;
    if (!depth && character === ":") isName = false;
    else if (!depth && character === ",") {
      names.push(name.trim());
      name = "";
      isName = true;
    } else if (isName) name += character;
  }
  names.push(name.trim());
  return element("span", { title: type }, names.filter(Boolean).join(", "));
}

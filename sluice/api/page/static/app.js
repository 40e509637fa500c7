// The page: it shows the view that the address names, and shows it again when something has
// changed.

import "./theme.js";
import { listen, Problem } from "./api.js";
import { byId, element, link } from "./dom.js";
import { zone, zoneName } from "./format.js";

const REFRESH_MS = 10_000;
// The modules of a view are loaded when the view is first shown.
const ROUTES = [
  [/^\/$/, () => import("./overview.js"), "overview"],
  [/^\/pipelines\/([^/]+)$/, () => import("./glance.js"), "glance"],
  [/^\/pipelines\/([^/]+)\/topology$/, () => import("./topology.js"), "topologyTab"],
  [/^\/pipelines\/([^/]+)\/runs$/, () => import("./runs.js"), "runsTab"],
  [/^\/pipelines\/([^/]+)\/stores$/, () => import("./stores.js"), "pipelineStores"],
  [/^\/pipelines\/([^/]+)\/dead-letters$/, () => import("./dead_letters.js"), "deadLetters"],
  [/^\/pipelines\/([^/]+)\/shards$/, () => import("./shards.js"), "shardsTab"],
  [/^\/pipelines\/([^/]+)\/activity$/, () => import("./activity.js"), "activityTab"],
  [/^\/costs$/, () => import("./costs.js"), "costs"],
  [/^\/stores$/, () => import("./stores.js"), "stores"],
  [/^\/pipelines\/([^/]+)\/stores\/([^/]+)$/, () => import("./store.js"), "store"],
];

let current = null;

// A view is a function of the address. It returns { title, content, affects, live }: `live` is
// false for a view that does not change by itself, such as the answer to a search.
async function show({ keep = false, typing = false } = {}) {
  const { hash } = location;
  try {
    const shown = await viewAt(hash);
    if (location.hash !== hash) return;
    if (keep && !typing && isBusy()) return;
    replace(shown.content, keep);
    document.title = `${shown.title} – Sluice`;
    current = { hash, ...shown };
    trouble("");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    trouble(keep ? `${error.message} The page shows what was last known.` : error.message);
    if (!keep) replace(nothing(), false);
  }
}

async function viewAt(hash) {
  const [path, search = ""] = (hash.slice(1) || "/").split("?");
  for (const [pattern, load, name] of ROUTES) {
    const match = pattern.exec(path);
    if (!match) continue;
    const module = await load().catch(unavailable);
    const refresh = () => show({ keep: true });
    return module[name](match.slice(1).map(decoded), new URLSearchParams(search), { refresh });
  }
  throw new Problem(404, "There is nothing at this address.");
}

const nothing = () => [
  element("h1", {}, "Nothing can be shown"),
  element("p", {}, link("#/", "All pipelines")),
];

// A view's module cannot be loaded, so the server does not answer.
function unavailable(error) {
  if (error instanceof SyntaxError) throw error;
  throw new Problem(0, "Airflow's API server does not answer.");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Problem(404, "There is nothing at this address.");
  }
}

// Whether only the parameters of the address have changed. If so, focus and scrolling are kept.
function isSameView() {
  const path = (hash) => (hash.slice(1) || "/").split("?")[0];
  return (
    current !== null &&
    path(current.hash) === path(location.hash) &&
    !byId("view").querySelector("form.search")
  );
}

// Whether somebody is typing, choosing or reading a dialog. A new view would interrupt this.
function isBusy() {
  return (
    document.querySelector("dialog[open]") !== null ||
    byId("view").querySelector("input:focus, select:focus, textarea:focus") !== null
  );
}

function replace(content, isSame) {
  const fresh = element("div", {}, [content].flat(5));
  if (!isSame) {
    byId("view").replaceChildren(...fresh.childNodes);
    byId("view").focus({ preventScroll: true });
    return;
  }
  const before = whatSomebodyDid();
  keepIslands(fresh);
  byId("view").replaceChildren(...fresh.childNodes);
  restore(before);
}

// Keep the charts and drawings that would look the same, with their zoom and pointer.
function keepIslands(fresh) {
  const islands = [...byId("view").querySelectorAll("[data-island]")];
  for (const island of fresh.querySelectorAll("[data-island]")) {
    const { island: name, version } = island.dataset;
    const before = islands.find(
      ({ dataset }) => dataset.island === name && dataset.version === version,
    );
    if (before) island.replaceWith(before);
  }
}

// The user's focus, scrolling, opened details and typed text, to be restored in the fresh view.
function whatSomebodyDid() {
  const focused = document.activeElement;
  return {
    input: focused?.matches("input[type=search]") ? focused : null,
    text: focused?.textContent,
    scrolled: [...document.querySelectorAll(".scroll, .drawing")].map((node) => node.scrollLeft),
    opened: new Set([...document.querySelectorAll("details[open]")].map(keyOf)),
    done: document.getElementById("done"),
    revealed: revealed()?.dataset.reveal,
  };
}

// What somebody has just chosen to see.
const revealed = () => byId("view").querySelector("[data-reveal]");

function restore({ input, text, scrolled, opened, done, revealed: before }) {
  for (const details of document.querySelectorAll("details")) {
    if (opened.has(keyOf(details))) details.open = true;
  }
  document.querySelectorAll(".scroll, .drawing").forEach((node, index) => {
    node.scrollLeft = scrolled[index] ?? 0;
  });
  // The result of the last action stays until the next action, or until another view.
  if (done) document.getElementById("done")?.replaceWith(done);
  if (input) restoreInput(input);
  else if (text) focusOn(text);
  const chosen = revealed();
  if (chosen && chosen.dataset.reveal !== before) chosen.scrollIntoView({ block: "nearest" });
}

const keyOf = (details) => details.dataset.key ?? details.querySelector("summary").textContent;

function restoreInput(before) {
  const input = byId("view").querySelector("input[type=search]");
  input?.focus({ preventScroll: true });
  input?.setSelectionRange(before.selectionStart, before.selectionEnd);
}

function focusOn(text) {
  const nodes = [...byId("view").querySelectorAll("button, a, summary")];
  nodes.find((node) => node.textContent === text)?.focus({ preventScroll: true });
}

function trouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}

addEventListener("hashchange", () => show({ keep: isSameView() }));
addEventListener("sluice-typed", () => show({ keep: true, typing: true }));
document.addEventListener("visibilitychange", () => document.hidden || show({ keep: true }));

let soon = 0;
listen(
  (names) => {
    if (!isLive() || (current.affects && !names.includes(current.affects))) return;
    clearTimeout(soon);
    soon = setTimeout(() => show({ keep: true }), 200);
  },
  (isLost) => {
    byId("live").textContent = isLost ? "Reconnecting…" : "Live";
    byId("live").className = `pill ${isLost ? "" : "good"}`;
  },
);

const isLive = () => current !== null && current.live !== false;

async function run() {
  if (!document.hidden && (!current || isLive())) await show({ keep: true });
  setTimeout(run, REFRESH_MS);
}

const isUtc = zoneName === "UTC" || zone === "UTC";
byId("zone").textContent = `Times in ${isUtc ? "UTC" : `${zoneName} (${zone})`}`;
await show();
setTimeout(run, REFRESH_MS);

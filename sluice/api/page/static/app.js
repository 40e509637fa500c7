// The page: it shows the view that the address names, and shows it again when something has changed.

import "./theme.js";
import { listen, Problem } from "./api.js";
import { byId, element, link } from "./dom.js";
import { zone, zoneName } from "./format.js";

const REFRESH_MS = 10_000;
// The modules of a view are loaded when the view is first shown.
const ROUTES = [
  [/^\/$/, () => import("./overview.js"), "overview"],
  [/^\/pipelines\/([^/]+)$/, () => import("./glance.js"), "glance"],
  [/^\/pipelines\/([^/]+)\/topology$/, () => import("./pipeline.js"), "pipelineTopology"],
  [/^\/pipelines\/([^/]+)\/runs$/, () => import("./runs.js"), "runsTab"],
  [/^\/pipelines\/([^/]+)\/stores$/, () => import("./pipeline.js"), "pipelineStores"],
  [/^\/pipelines\/([^/]+)\/dead-letters$/, () => import("./dead_letters.js"), "deadLetters"],
  [/^\/pipelines\/([^/]+)\/shards$/, () => import("./pipeline.js"), "shardsTab"],
  [/^\/costs$/, () => import("./costs.js"), "costs"],
  [/^\/stores$/, () => import("./store.js"), "stores"],
  [/^\/pipelines\/([^/]+)\/stores\/([^/]+)$/, () => import("./store.js"), "store"],
];

let current = null;

// A view is a function of the address. It returns { title, content, affects, live }: `live` is false for a view that
// does not change by itself, such as the answer to a search.
async function show({ keep = false, typing = false } = {}) {
  const [path, search = ""] = (location.hash.slice(1) || "/").split("?");
  const route = ROUTES.map(([pattern, load, view]) => [pattern.exec(path), load, view]).find(
    ([match]) => match,
  );
  const { hash } = location;
  const view = { hash };
  try {
    if (!route) throw new Problem(404, "There is nothing at this address.");
    const module = await route[1]().catch(unavailable);
    const shown = await module[route[2]](
      route[0].slice(1).map(decoded),
      new URLSearchParams(search),
      { refresh: () => show({ keep: true }) },
    );
    if (location.hash !== hash) return;
    if (keep && !typing && isBusy()) return;
    replace(shown.content, keep);
    document.title = `${shown.title} – Sluice`;
    current = { ...view, ...shown };
    trouble("");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    trouble(keep ? `${error.message} The page shows what was last known.` : error.message);
    if (!keep)
      replace(
        [element("h1", {}, "Nothing can be shown"), element("p", {}, link("#/", "All pipelines"))],
        false,
      );
  }
}

// A view's module that cannot be loaded is one more answer that the server does not give.
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

// Whether the new address shows the same view with other parameters, so that the focus and the scrolling stay.
function isSameView() {
  const path = (hash) => (hash.slice(1) || "/").split("?")[0];
  return (
    current !== null &&
    path(current.hash) === path(location.hash) &&
    !byId("view").querySelector("form.search")
  );
}

// Whether somebody is typing, choosing or reading a dialog, which a new view would take away.
function isBusy() {
  return (
    document.querySelector("dialog[open]") !== null ||
    byId("view").querySelector("input:focus, select:focus, textarea:focus") !== null
  );
}

function replace(content, isSame) {
  const focused = isSame && document.activeElement?.textContent;
  const scrolled = isSame
    ? [...document.querySelectorAll(".scroll, .drawing")].map((node) => node.scrollLeft)
    : [];
  const opened = isSame
    ? new Set([...document.querySelectorAll("details[open]")].map(keyOf))
    : new Set();
  const done = isSame && document.getElementById("done");
  const input =
    isSame && document.activeElement?.matches("input[type=search]") ? document.activeElement : null;
  const fresh = element("div", {}, [content].flat(5));
  // Parts that would look the same stay, with the place of the pointer and what somebody has zoomed into.
  for (const island of fresh.querySelectorAll("[data-island]")) {
    const before = [...byId("view").querySelectorAll("[data-island]")].find(
      ({ dataset }) =>
        dataset.island === island.dataset.island && dataset.version === island.dataset.version,
    );
    if (before) island.replaceWith(before);
  }
  byId("view").replaceChildren(...fresh.childNodes);
  if (input) restoreInput(input);
  for (const details of document.querySelectorAll("details"))
    if (opened.has(keyOf(details))) details.open = true;
  document.querySelectorAll(".scroll, .drawing").forEach((node, index) => {
    node.scrollLeft = scrolled[index] ?? 0;
  });
  // The result of the last action stays until the next action, or until another view.
  if (done) document.getElementById("done")?.replaceWith(done);
  if (focused && !input)
    [...byId("view").querySelectorAll("button, a, summary")]
      .find((node) => node.textContent === focused)
      ?.focus();
  if (!isSame) byId("view").focus({ preventScroll: true });
}

const keyOf = (details) => details.dataset.key ?? details.querySelector("summary").textContent;

function restoreInput(before) {
  const input = byId("view").querySelector("input[type=search]");
  input?.focus();
  input?.setSelectionRange(before.selectionStart, before.selectionEnd);
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
    if (!current || current.live === false || (current.affects && !names.includes(current.affects)))
      return;
    clearTimeout(soon);
    soon = setTimeout(() => show({ keep: true }), 200);
  },
  (isLost) => {
    byId("live").textContent = isLost ? "Reconnecting…" : "Live";
    byId("live").className = `pill ${isLost ? "" : "good"}`;
  },
);

async function run() {
  if (!document.hidden && (!current || current.live !== false)) await show({ keep: true });
  setTimeout(run, REFRESH_MS);
}

byId("zone").textContent =
  `Times in ${zoneName === "UTC" || zone === "UTC" ? "UTC" : `${zoneName} (${zone})`}`;
await show();
setTimeout(run, REFRESH_MS);

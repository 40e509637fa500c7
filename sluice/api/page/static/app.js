// The page: it shows the view that the address names, and shows it again when something has changed.

import "./theme.js";
import { listen, Problem } from "./api.js";
import { byId, element, link } from "./dom.js";
import { overview } from "./overview.js";
import { pipeline } from "./pipeline.js";
import { deadLetters } from "./dead_letters.js";
import { store, stores } from "./store.js";

const REFRESH_MS = 10_000;
const ROUTES = [
  [/^\/$/, overview],
  [/^\/pipelines\/([^/]+)$/, pipeline],
  [/^\/pipelines\/([^/]+)\/dead-letters$/, deadLetters],
  [/^\/stores$/, stores],
  [/^\/pipelines\/([^/]+)\/stores\/([^/]+)$/, store],
];

let current = null;

// A view is a function of the address. It returns { title, content, affects, live }: `live` is false for a view that
// does not change by itself, such as the answer to a search.
async function show({ keep = false } = {}) {
  const [path, search = ""] = (location.hash.slice(1) || "/").split("?");
  const route = ROUTES.map(([pattern, view]) => [pattern.exec(path), view]).find(([match]) => match);
  const { hash } = location;
  const view = current?.hash === hash && keep ? current : { hash };
  try {
    if (!route) throw new Problem(404, "There is nothing at this address.", "Go back to all pipelines.");
    const shown = await route[1](route[0].slice(1).map(decodeURIComponent), new URLSearchParams(search), { refresh: () => show({ keep: true }) });
    if (location.hash !== hash) return;
    if (keep && isBusy()) return;
    replace(shown.content, keep && current?.hash === hash);
    document.title = `${shown.title} – Sluice`;
    current = { ...view, ...shown };
    trouble("");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    trouble(error.message);
    if (!keep) replace([element("h1", {}, "Nothing can be shown"), element("p", {}, link("#/", "All pipelines"))], false);
  }
}

// Whether somebody is typing, choosing or reading a dialog, which a new view would take away.
function isBusy() {
  return document.querySelector("dialog[open]") !== null || byId("view").querySelector("input:focus, select:focus, textarea:focus") !== null;
}

function replace(content, isSame) {
  const focused = isSame && document.activeElement?.textContent;
  const scrolled = isSame ? [...document.querySelectorAll(".scroll, .drawing")].map((node) => node.scrollLeft) : [];
  const opened = isSame ? new Set([...document.querySelectorAll("details[open] > summary")].map((node) => node.textContent)) : new Set();
  const done = isSame && document.getElementById("done");
  byId("view").replaceChildren(...[content].flat(3).filter(Boolean));
  for (const summary of document.querySelectorAll("details > summary")) if (opened.has(summary.textContent)) summary.parentElement.open = true;
  document.querySelectorAll(".scroll, .drawing").forEach((node, index) => { node.scrollLeft = scrolled[index] ?? 0; });
  // The result of the last action stays until the next action, or until another view.
  if (done) document.getElementById("done")?.replaceWith(done);
  if (focused) [...byId("view").querySelectorAll("button, a, summary")].find((node) => node.textContent === focused)?.focus();
  if (!isSame) byId("view").focus({ preventScroll: true });
}

function trouble(text) {
  byId("trouble").textContent = text && `${text} What is shown may be out of date.`;
  byId("trouble").hidden = !text;
}

addEventListener("hashchange", () => show());
document.addEventListener("visibilitychange", () => document.hidden || show({ keep: true }));

let soon = 0;
listen((names) => {
  if (!current || current.live === false || (current.affects && !names.includes(current.affects))) return;
  clearTimeout(soon);
  soon = setTimeout(() => show({ keep: true }), 200);
}, (isLost) => {
  byId("live").textContent = isLost ? "Reconnecting…" : "Live";
  byId("live").className = `pill ${isLost ? "" : "good"}`;
});

async function run() {
  if (!document.hidden && (!current || current.live !== false)) await show({ keep: true });
  setTimeout(run, REFRESH_MS);
}

await show();
setTimeout(run, REFRESH_MS);

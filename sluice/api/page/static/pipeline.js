// One pipeline: the heading with its actions, and the tabs that all its views share.

import { get, optional, part, query } from "./api.js";
import { headingActions } from "./actions.js";
import { badge, card, element, link } from "./dom.js";
import { number } from "./format.js";
import { failures, health, rejectedTotal, whyPaused } from "./health.js";
import { periodChoice, periodOf, withPeriod } from "./period.js";

const TABS = [
  ["", "Overview"],
  ["topology", "Topology"],
  ["runs", "Runs"],
  ["stores", "Stores"],
  ["dead-letters", "Dead letters"],
  ["shards", "Shards and generations"],
  ["activity", "Activity"],
];
const WITH_TIME = ["", "topology", "runs"];

// A view of one tab. `content`: (context) → nodes. `isLive`: whether it is shown again when
// something has changed.
export function tabView(tab, content, isLive = () => true) {
  return async ([name], search, { refresh }) => {
    const [overview] = await get("/overview", { pipeline: name });
    if (!overview) return { title: name, content: missing(name) };
    const hash = `#/pipelines/${part(name)}`;
    const usual = WITH_TIME.includes(tab) ? await usualRange(overview, search) : "day";
    const context = { name, overview, hash, search, period: periodOf(search, usual), refresh };
    const [, title] = TABS.find(([id]) => id === tab);
    return {
      title: tab ? `${title} of ${name}` : name,
      affects: name,
      live: isLive(search),
      content: [
        element("div", { class: "title" }, heading(overview), headingActions(context)),
        element("div", { role: "status", id: "done" }, ""),
        tabs(hash, tab, overview, search),
        overview.pause && element("p", { role: "note", id: "paused" }, whyPaused(overview)),
        failures([overview]),
        await content(context),
      ],
    };
  };
}

// If all batches are of the last hour, a day's charts would have only dots at their end.
async function usualRange({ pipeline, snapshot, records }, search) {
  const isChosen = ["range", "from", "to"].some((name) => search.get(name));
  const hourAgo = Date.now() - 3_600_000;
  const isOld = records.length >= 30 || Date.parse(snapshot?.published_at) < hourAgo;
  if (isChosen || !snapshot || isOld) return "day";
  const since = new Date(hourAgo - 23 * 3_600_000).toISOString();
  const until = new Date(hourAgo).toISOString();
  const request = { since, until, columns: 1 };
  const earlier = await optional(get(`/pipelines/${part(pipeline)}/history`, request));
  return earlier?.batches === 0 ? "hour" : "day";
}

export const choosePeriod = ({ hash, search, period }, tab) =>
  periodChoice(`${hash}${tab}`, search, period);

export const goToPeriod =
  ({ hash, search }, tab) =>
  (from, to) => {
    location.hash = `${hash}${tab}${withPeriod(search, { from, to })}`;
  };

function missing(name) {
  return [
    element("h1", {}, name),
    card(
      "Not a pipeline of Sluice",
      element("p", {}, "Either this DAG is not a pipeline, or you may not read it."),
      element("p", {}, link("#/", "All pipelines")),
    ),
  ];
}

function heading(overview) {
  const { owner, tags } = overview;
  const badges = tags.map((tag) => [" ", link(`#/?tag=${part(tag)}`, badge(tag))]);
  if (owner && owner !== "sluice")
    badges.unshift([" ", link(`#/?owner=${part(owner)}`, badge(owner))]);
  return element("h1", {}, overview.pipeline, " ", health(overview), badges);
}

// The tabs with charts keep the chosen time.
function tabs(hash, current, overview, search) {
  const { from, to, range } = Object.fromEntries(search);
  const rejected = rejectedTotal(overview.dead_letters);
  const links = TABS.map(([id, title]) => {
    const path = id ? `${hash}/${id}` : hash;
    const href = WITH_TIME.includes(id) ? path + query({ from, to, range }) : path;
    const count = id === "dead-letters" && rejected > 0 && [" ", badge(number(rejected))];
    return element("a", { href, "aria-current": id === current ? "page" : null }, title, count);
  });
  const label = `Views of ${overview.pipeline}`;
  return element("nav", { class: "tabs", "aria-label": label }, links);
}

// Who did what to a pipeline, and when.

import { get, part, query } from "./api.js";
import { airflowLink, badge, element, link, table } from "./dom.js";
import { time } from "./format.js";
import { tabView } from "./pipeline.js";

const SHOWN = 50;
const MOST = 1_000;

const COLUMNS = [
  { title: "When", cell: ({ at }) => time(at) },
  { title: "Who", cell: ({ by }) => by || "–" },
  { title: "What", cell: ({ action }) => badge(action) },
  { title: "Details", cell: ({ detail }) => detail || "–" },
  { title: "Run", cell: ({ log }) => (log ? airflowLink(log, "run") : "–") },
];

export const activityTab = tabView("activity", async ({ name, hash, search }) => {
  const limit = search.get("all") === "1" ? MOST : SHOWN;
  const activities = await get(`/pipelines/${part(name)}/activity`, { limit });
  const empty = "Nobody has done anything yet. Runs that start by themselves are in Runs.";
  const more = link(`${hash}/activity${query({ all: 1 })}`, `Show up to ${MOST}`);
  return element(
    "section",
    { class: "card" },
    table(COLUMNS, activities, { label: "Activity", empty }),
    activities.length === SHOWN && element("p", {}, more),
  );
});

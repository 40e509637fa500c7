// The lines of the overview: a pipeline's health, what is unread, and what happened last.

import { part } from "./api.js";
import { element, groupedTable, link } from "./dom.js";
import { ago, number } from "./format.js";
import { awaited, health, lastRun, ORDER, rejectedTotal, unread, whyPaused } from "./health.js";
import { spark } from "./spark.js";

const pathOf = ({ pipeline }) => `#/pipelines/${part(pipeline)}`;

const COLUMNS = [
  {
    title: "Pipeline",
    cell: (pipeline) => link(pathOf(pipeline), pipeline.pipeline),
    sort: (pipeline) => pipeline.pipeline,
  },
  { title: "Health", cell: healthCell, sort: (pipeline) => ORDER.indexOf(pipeline.health) },
  { title: "Unread", number: true, cell: unread, sort: (pipeline) => pipeline.unread ?? -1 },
  { title: "Newest batches", cell: (pipeline) => spark(pipeline.records) ?? "–" },
  {
    title: "Snapshot",
    cell: snapshotCell,
    sort: (pipeline) => pipeline.snapshot?.published_at ?? "",
  },
  {
    title: "Last run",
    cell: (pipeline) => lastRun(pipeline.last_run),
    sort: (pipeline) => pipeline.last_run?.started_at ?? "",
  },
  {
    title: "Dead letters, 24 h",
    number: true,
    cell: lettersCell,
    sort: (pipeline) => rejectedTotal(pipeline.dead_letters),
  },
];
const [, HEALTH] = COLUMNS;

// The column by which lines are sorted; the health if the title is unknown.
export const columnOf = (title) =>
  COLUMNS.find((column) => column.sort && column.title === title) ?? HEALTH;

// `groups`: [{ title, rows }], with the pipelines of each group.
export function pipelineLines(groups, sorting) {
  const isEmpty = groups.every(({ rows }) => !rows.length);
  if (isEmpty) return element("p", { class: "quiet" }, "No pipeline matches.");
  return groupedTable(COLUMNS, groups, { label: "Pipelines", sorting });
}

function healthCell(pipeline) {
  const why = (...text) => element("small", { class: "why" }, " ", text);
  return [
    health(pipeline),
    pipeline.health === "not_started" && why(awaited(pipeline)),
    pipeline.pause && why(whyPaused(pipeline)),
  ];
}

function snapshotCell({ snapshot }) {
  if (!snapshot) return "none";
  return element("span", { title: `snapshot ${snapshot.id}` }, ago(snapshot.published_at));
}

function lettersCell(pipeline) {
  const count = rejectedTotal(pipeline.dead_letters);
  if (!count) return "0";
  const reasons = Object.entries(pipeline.dead_letters);
  const texts = reasons.map(([reason, records]) => `${reason}: ${number(records)}`);
  const attributes = { href: `${pathOf(pipeline)}/dead-letters`, title: texts.join("\n") };
  return element("a", attributes, number(count));
}

// The newest batches of a pipeline with their audits.

import { airflowLink, badge, breakable, element, table } from "./dom.js";
import { duration, number, time } from "./format.js";
import { PHASES } from "./phases.js";

function counts(byName) {
  const texts = Object.entries(byName).map(([name, count]) => `${name} ${number(count)}`);
  return breakable(texts.join(", ") || "0");
}

function phases(batch) {
  const texts = Object.entries(batch.phases).map(
    ([phase, seconds]) => `${PHASES[phase] ?? phase}: ${duration(seconds)}`,
  );
  return texts.join("\n");
}

function audit(batch) {
  if (batch.wrong.length) return badge(batch.wrong.join("; "), "failed");
  return badge("balances", "success");
}

const COLUMNS = [
  { title: "Snapshot", cell: (batch) => element("code", {}, batch.snapshot) },
  { title: "Published", cell: (batch) => time(batch.published_at) },
  { title: "Records", number: true, cell: (batch) => number(batch.records) },
  { title: "Applied", number: true, cell: (batch) => number(batch.applied) },
  { title: "Late", cell: (batch) => counts(batch.late) },
  { title: "Dropped", cell: (batch) => counts(batch.dropped) },
  { title: "Dead letters", cell: (batch) => counts(batch.dead_letters) },
  {
    title: "Duration",
    number: true,
    cell: (batch) => element("span", { title: phases(batch) }, duration(batch.seconds)),
  },
  { title: "Audit", cell: audit },
  { title: "Run", cell: (batch) => (batch.log ? airflowLink(batch.log, "log") : "–") },
];

const NEWEST = "Newest batches with their audits";

export function batchList(batches, { isOpen = false, title = NEWEST } = {}) {
  return element(
    "details",
    { class: "card", open: isOpen },
    element("summary", {}, title),
    table(COLUMNS, batches, { label: "Batches", empty: "Nothing has been published yet." }),
  );
}

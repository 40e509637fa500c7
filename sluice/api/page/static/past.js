// What a pipeline has done in the chosen time: its batches added up in columns, or one by one.

import { get, optional, part } from "./api.js";

const MOST_BATCHES = 1_000;
export const COLUMNS = 120;
const NOTHING = { batches: 0, wrong: [], complete: true, columns: [], marks: [] };

const isoTimes = ({ from, to }) => [from, to].map((at) => new Date(at).toISOString());

// The batches of the chosen time, added up in columns.
export async function historyOf({ name, overview, period }) {
  if (!overview.snapshot) return NOTHING;
  const [since, until] = isoTimes(period);
  return get(`/pipelines/${part(name)}/history`, { since, until, columns: COLUMNS });
}

// One count, such as `late`, summed over all columns, by name.
export function sums(past, what) {
  const byName = new Map();
  for (const column of past.columns) {
    for (const [name, count] of Object.entries(column[what] ?? {}))
      byName.set(name, (byName.get(name) ?? 0) + count);
  }
  return byName;
}

// The newest batches of the chosen time, newest first; none before the first run.
export async function batchesOf({ name, overview, period }) {
  if (!overview.snapshot) return [];
  const [since] = isoTimes(period);
  const path = `/pipelines/${part(name)}/batches`;
  const batches = await optional(get(path, { limit: MOST_BATCHES, since }));
  return batches.filter((batch) => Date.parse(batch.published_at) <= period.to);
}

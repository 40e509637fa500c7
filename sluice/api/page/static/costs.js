// What the runs of all pipelines have cost, by day, owner and pipeline.

import { get, part, query } from "./api.js";
import { badge, card, choices, element, link, table } from "./dom.js";
import { duration, number } from "./format.js";

const DAYS = [7, 30, 90];
const MOST_OWNERS = 5;
const SHOWN_PIPELINES = 20;
const DAY_MS = 86_400_000;
const WHAT =
  "CPU time and memory of runs, on the hosts of their drivers, by the day in UTC on which they " +
  "ended. What executors on other hosts and state servers use is not in it.";

export async function costs(_path, search) {
  const days = DAYS.find((choice) => String(choice) === search.get("days")) ?? DAYS[0];
  const all = await get("/costs", { days });
  return {
    title: "Costs",
    live: false,
    content: [
      element("h1", {}, "Costs"),
      element("p", { class: "quiet" }, WHAT),
      chooseDays(days),
      all.length
        ? await content(all, days, search.get("all") === "1")
        : card("No costs", element("p", {}, "No run has ended on these days.")),
    ],
  };
}

function chooseDays(days) {
  const all = DAYS.map((choice) => ({
    href: `#/costs${query({ days: choice === DAYS[0] ? "" : choice })}`,
    text: `Last ${choice} days`,
    isChosen: choice === days,
  }));
  return choices("Days", all);
}

async function content(all, days, isWhole) {
  return [await chart(all, days), byOwner(all), byPipeline(all, days, isWhole)];
}

async function chart(all, days) {
  const [{ timeChart }, { uPlot }] = await Promise.all([
    import("./charts.js"),
    import("./library.js"),
  ]);
  const today = Math.floor(Date.now() / DAY_MS);
  const times = Array.from(
    { length: days },
    (_, index) => (today - days + 1 + index + 0.5) * DAY_MS,
  );
  const owners = added(all, ownerOf).map(({ name }) => name);
  const first = owners.slice(0, MOST_OWNERS);
  const series = first.map((name) => ({ name, of: (cost) => ownerOf(cost) === name }));
  if (owners.length > first.length)
    series.push({ name: "others", of: (cost) => !first.includes(ownerOf(cost)) });
  const drawn = series.map(({ name, of }) => {
    const own = all.filter(of);
    return { name, values: times.map((at) => onDay(own, at)) };
  });
  const period = { from: times[0] - DAY_MS / 2, to: times.at(-1) + DAY_MS / 2 };
  return element(
    "section",
    { class: "charts wide" },
    timeChart(await uPlot(), "CPU time per day", times, drawn, {
      period,
      format: duration,
      bars: true,
      daily: true,
    }),
  );
}

function onDay(costs, at) {
  const day = new Date(at).toISOString().slice(0, 10);
  return costs.filter((cost) => cost.day === day).reduce((sum, cost) => sum + cost.cpu_seconds, 0);
}

const ownerOf = (cost) => cost.owner || "without an owner";

const SUMS = ["runs", "failed_runs", "cpu_seconds", "gigabyte_seconds"];

// Costs added up by a name, the most CPU time first.
function added(all, nameOf) {
  const sums = new Map();
  for (const cost of all) {
    const name = nameOf(cost);
    const sum = sums.get(name) ?? { name, owner: ownerOf(cost), pipelines: new Set() };
    for (const each of SUMS) sum[each] = (sum[each] ?? 0) + cost[each];
    sum.pipelines.add(cost.pipeline);
    sums.set(name, sum);
  }
  return [...sums.values()].sort((a, b) => b.cpu_seconds - a.cpu_seconds);
}

const FIGURES = [
  { title: "Runs", number: true, cell: ({ runs }) => number(runs) },
  {
    title: "Failed",
    number: true,
    cell: ({ failed_runs: failed }) => (failed ? badge(number(failed), "failed") : "0"),
  },
  { title: "CPU time", number: true, cell: ({ cpu_seconds: seconds }) => duration(seconds) },
  {
    title: "CPU time of a run",
    number: true,
    cell: ({ cpu_seconds: seconds, runs }) => duration(seconds / runs),
  },
  {
    title: "GiB hours",
    number: true,
    cell: ({ gigabyte_seconds: seconds }) => (seconds / 3600).toFixed(seconds < 36_000 ? 2 : 0),
  },
];

function byOwner(all) {
  return card(
    "By owner",
    table(
      [
        {
          title: "Owner",
          cell: ({ name }) =>
            name === "without an owner" ? name : link(`#/?owner=${part(name)}`, name),
        },
        { title: "Pipelines", number: true, cell: ({ pipelines }) => number(pipelines.size) },
        ...FIGURES,
      ],
      added(all, ownerOf),
      { label: "Costs by owner" },
    ),
  );
}

function byPipeline(all, days, isWhole) {
  const pipelines = added(all, (cost) => cost.pipeline);
  const shown = isWhole ? pipelines : pipelines.slice(0, SHOWN_PIPELINES);
  return card(
    "By pipeline",
    table(
      [
        { title: "Pipeline", cell: ({ name }) => link(`#/pipelines/${part(name)}`, name) },
        { title: "Owner", cell: ({ owner }) => owner },
        ...FIGURES,
      ],
      shown,
      { label: "Costs by pipeline" },
    ),
    shown.length < pipelines.length &&
      element(
        "p",
        {},
        link(`#/costs${query({ days, all: 1 })}`, `Show all ${number(pipelines.length)} pipelines`),
      ),
  );
}

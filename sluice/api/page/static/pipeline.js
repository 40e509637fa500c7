// One pipeline: its heading with the actions, and a view for each tab.

import { address, get, part, post, query } from "./api.js";
import { airflowLink, badge, button, card, confirm, element, link, report, table } from "./dom.js";
import { ago, bytes, duration, number } from "./format.js";
import { failures, health, rejectedTotal, whyPaused } from "./health.js";
import { periodChoice, periodOf, withPeriod } from "./period.js";
import { fieldNames, kind, storePath, workers } from "./stores.js";

const TABS = [
  ["", "Overview"],
  ["topology", "Topology"],
  ["runs", "Runs"],
  ["stores", "Stores"],
  ["dead-letters", "Dead letters"],
  ["shards", "Shards and generations"],
];
const REPLAY =
  "The state is built again from the topics, in a generation beside the current one. Queries read the current one until you promote the new one. To replay a part, enter a time such as 2026-11-21T08:00:00 (UTC) or offsets such as orders/0/1200,orders/1/980. From can also be beginning.";
const ACTIONS = {
  run: [
    "Run now",
    "Read all unread records",
    "The pipeline's DAG is triggered. Without unread records the run changes nothing.",
  ],
  replay: [
    "Replay…",
    "Replay into a new generation",
    REPLAY,
    [
      { name: "from", label: "From", note: "where the current generation began" },
      { name: "until", label: "Until", note: "the newest snapshot" },
    ],
  ],
  promote: [
    "Promote…",
    "Make the new generation the current one",
    "A run first lets the new generation read what the current one has read since. Then all queries read the new generation. The next replay removes the old one.",
  ],
  change: [
    "Compute what has changed…",
    "Compute new and changed stores",
    "New and changed stores are computed from the topics, and the entries of removed stores are deleted for good. All other stores keep their state, and queries of them go on. Then the pipeline runs.",
  ],
  drop: ["Drop…", "Remove the new generation", "The current generation stays as it is."],
};
const MOST_BATCHES = 1_000;
export const COLUMNS = 120;
const NOTHING = { batches: 0, wrong: [], complete: true, columns: [], marks: [] };

export const optional = (answer) =>
  answer.catch((error) => (error.status === 404 ? [] : Promise.reject(error)));

// A view of one tab. `content`: (context) → nodes. `isLive`: whether it is shown again when something has changed.
export function tabView(tab, content, isLive = () => true) {
  return async (path, search, { refresh }) => {
    const [name] = path;
    const [overview] = await get("/overview", { pipeline: name });
    if (!overview) return { title: name, content: missing(name) };
    const hash = `#/pipelines/${part(name)}`;
    const context = {
      name,
      overview,
      hash,
      search,
      period: periodOf(search),
      refresh,
      act: (action) => start(overview, action, refresh),
      pause: () => pauseOrResume(overview, refresh),
    };
    return {
      title: tab ? `${TABS.find(([id]) => id === tab)[1]} of ${name}` : name,
      affects: name,
      live: isLive(search),
      content: [
        heading(overview, context.act, context.pause),
        element("div", { role: "status", id: "done" }, ""),
        tabs(hash, tab, overview, search),
        overview.pause && element("p", { role: "note", id: "paused" }, whyPaused(overview)),
        failures([overview]),
        await content(context),
      ],
    };
  };
}

// The batches of the chosen time, added up in columns.
export async function historyOf({ name, overview, period }) {
  if (!overview.snapshot) return NOTHING;
  const [since, until] = [period.from, period.to].map((at) => new Date(at).toISOString());
  return get(`/pipelines/${part(name)}/history`, { since, until, columns: COLUMNS });
}

// The sums of one count, such as `late`, of all columns, by name.
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
  const batches = await optional(
    get(`/pipelines/${part(name)}/batches`, {
      limit: MOST_BATCHES,
      since: new Date(period.from).toISOString(),
    }),
  );
  return batches.filter((batch) => Date.parse(batch.published_at) <= period.to);
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

const isRunning = (overview) => ["running", "queued"].includes(overview.last_run?.state);

function heading(overview, act, pause) {
  const label = isRunning(overview) ? "Run again after this run" : ACTIONS.run[0];
  return element(
    "div",
    { class: "title" },
    element(
      "h1",
      {},
      overview.pipeline,
      " ",
      health(overview),
      overview.owner &&
        overview.owner !== "sluice" && [
          " ",
          link(`#/?owner=${part(overview.owner)}`, badge(overview.owner)),
        ],
      overview.tags.map((tag) => [" ", link(`#/?tag=${part(tag)}`, badge(tag))]),
    ),
    element(
      "div",
      { class: "actions" },
      airflowLink(
        `${address("").replace(/\/sluice\/v1$/, "")}/dags/${part(overview.pipeline)}`,
        "DAG",
      ),
      overview.may_edit && !overview.pause && button(label, () => act("run"), { class: "primary" }),
      overview.may_edit && button(overview.pause ? "Resume" : "Pause…", pause),
      overview.may_edit &&
        overview.failures.some((failure) => failure.remedy === "change") &&
        button(ACTIONS.change[0], () => act("change"), { class: "primary" }),
      overview.may_edit && overview.snapshot && button(ACTIONS.replay[0], () => act("replay")),
    ),
  );
}

// The tabs with charts keep the chosen time.
function tabs(hash, current, overview, search) {
  const { from, to, range } = Object.fromEntries(search);
  const time = query({ from, to, range });
  const path = (id) =>
    (id ? `${hash}/${id}` : hash) + (["", "topology", "runs"].includes(id) ? time : "");
  const rejected = rejectedTotal(overview.dead_letters);
  return element(
    "nav",
    { class: "tabs", "aria-label": `Views of ${overview.pipeline}` },
    TABS.map(([id, title]) =>
      element(
        "a",
        { href: path(id), "aria-current": id === current ? "page" : null },
        title,
        id === "dead-letters" && rejected > 0 && [" ", badge(number(rejected))],
      ),
    ),
  );
}

async function start(overview, action, refresh) {
  const name = overview.pipeline;
  const [, title, text, fields] = ACTIONS[action];
  const waits = isRunning(overview)
    ? " A run is in progress. The new run begins when it has ended."
    : "";
  const send = (given) =>
    post(`/pipelines/${part(name)}/runs`, {
      action,
      ...Object.fromEntries(Object.entries(given).filter(([, point]) => point)),
    });
  await report(refresh, async () => {
    const started = await confirm(`${title}: ${name}`, text + waits, title, { fields, send });
    return started && ["Run ", airflowLink(started.log, started.run), " is queued."];
  });
}

async function pauseOrResume(overview, refresh) {
  const name = overview.pipeline;
  const path = `/pipelines/${part(name)}`;
  await report(refresh, async () => {
    if (overview.pause) {
      await post(`${path}/resume`, {});
      return ["The pipeline may run again."];
    }
    const text =
      "No run starts, whoever asks for it, and nothing counts as wrong. A run in progress ends when it has read all records. Everybody sees the reason.";
    const paused = await confirm(`Pause ${name}`, text, "Pause", {
      fields: [{ name: "reason", label: "Reason", note: "why it does not run" }],
      send: (given) => post(`${path}/pause`, given),
    });
    return paused && ["The pipeline is paused."];
  });
}

export const pipelineStores = tabView("stores", async ({ name }) => {
  const own = await get("/stores", { entries: true, pipeline: name });
  return element(
    "section",
    { class: "card" },
    table(
      [
        { title: "Store", cell: (store) => link(storePath(name, store.store), store.store) },
        { title: "Kind", cell: (store) => badge(kind(store)) },
        { title: "Key", cell: (store) => element("code", {}, store.key) },
        { title: "Fields", cell: (store) => fieldNames(store.value) },
        { title: "Entries", number: true, cell: (store) => number(store.entries) },
        { title: "Workers", cell: (store) => workers(store.workers) },
        {
          title: "Snapshot",
          cell: (store) =>
            store.snapshot
              ? [element("code", {}, store.snapshot.id), " ", ago(store.snapshot.published_at)]
              : "none",
        },
      ],
      own,
      { label: "Stores", empty: "The pipeline has published no store yet." },
    ),
  );
});

export const shardsTab = tabView("shards", async ({ name, overview, act }) => {
  const path = `/pipelines/${part(name)}`;
  if (!overview.snapshot)
    return card("Shards", element("p", { class: "quiet" }, "There are none before the first run."));
  const [generations, own] = await Promise.all([
    optional(get(`${path}/generations`)),
    optional(get(`${path}/workers`)),
  ]);
  return [generationList(name, generations, overview.may_edit, act), shards(own)];
});

function generationList(name, generations, mayEdit, act) {
  const others = generations.filter((generation) => !generation.current);
  const current = generations.find((generation) => generation.current);
  const compare = (generation) =>
    generation.stores.map((store) => [
      link(
        `${storePath(name, store)}?before=${current?.snapshot?.id ?? ""}&after=${generation.snapshot.id}`,
        store,
      ),
      " ",
    ]);
  const content = table(
    [
      { title: "Generation", cell: (generation) => element("code", {}, generation.generation) },
      {
        title: "State",
        cell: (generation) =>
          generation.current ? badge("current", "success") : badge("built beside it"),
      },
      {
        title: "Snapshot",
        cell: (generation) =>
          generation.snapshot
            ? [
                element("code", {}, generation.snapshot.id),
                ", ",
                ago(generation.snapshot.published_at),
              ]
            : "none",
      },
      {
        title: "Topology",
        cell: (generation) =>
          generation.current ? "" : generation.same_topology ? "the same" : "changed",
      },
      {
        title: "Compare",
        cell: (generation) =>
          generation.current || !generation.snapshot ? "" : compare(generation),
      },
    ],
    generations,
    { label: "Generations", empty: "Nothing has been published yet." },
  );
  const actions =
    mayEdit && others.length
      ? element(
          "div",
          { class: "actions" },
          button(ACTIONS.promote[0], () => act("promote"), { class: "primary" }),
          button(ACTIONS.drop[0], () => act("drop")),
        )
      : null;
  return card("Generations", content, actions);
}

function shardState(worker) {
  if (worker.status === "ok") return badge("ok", "success");
  if (worker.status === "degraded")
    return badge(`degraded: only its standby answers. ${worker.reason}`, "degraded");
  return badge(worker.reason || worker.status, "failed");
}

function shards(all) {
  return card(
    "Shards",
    table(
      [
        { title: "Worker", cell: (worker) => worker.number },
        {
          title: "Served by",
          cell: (worker) => (worker.port ? `${worker.host}:${worker.port}` : "this server"),
        },
        {
          title: "Size",
          number: true,
          cell: (worker) =>
            worker.bytes === null || worker.bytes === undefined ? "–" : bytes(worker.bytes),
        },
        { title: "State", cell: shardState },
        {
          title: "Standby",
          cell: (worker) =>
            worker.standby
              ? `${worker.standby.host}:${worker.standby.port}, ${worker.standby.snapshot ? `snapshot ${worker.standby.snapshot}` : "no copy yet"}`
              : "–",
        },
      ],
      all,
      { label: "Shards", empty: "There are none yet." },
    ),
  );
}

export const pipelineTopology = tabView("topology", async (context) => {
  const { topologyTab } = await import("./topology.js");
  const past = await historyOf(context);
  const chosen = context.search.get("node");
  return [
    context.overview.snapshot && choosePeriod(context, "/topology"),
    await topologyTab({ ...context, past, chosen }),
  ];
});

export const took = (run) =>
  run.started_at && run.ended_at
    ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000
    : null;
export const tookText = (run) => (took(run) === null ? "" : `, took ${duration(took(run))}`);

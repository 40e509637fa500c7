// All pipelines: what needs a person first, then a line for each pipeline, the worst first.

import { get, part, query } from "./api.js";
import { badge, card, element, link, table } from "./dom.js";
import { ago, number } from "./format.js";
import {
  awaited,
  failures,
  health,
  lastRun,
  ORDER,
  rejectedTotal,
  unread,
  whyPaused,
  words,
} from "./health.js";
import { spark } from "./spark.js";

const SHOWN = 100;

export async function overview(_path, search) {
  const pipelines = await get("/overview");
  const given = Object.fromEntries([...search].filter(([, value]) => value !== ""));
  return {
    title: "Pipelines",
    content: [
      element("h1", {}, "Pipelines"),
      ...(pipelines.length ? filled(pipelines, given) : [nothing()]),
    ],
  };
}

const at = (given) => `#/${query(given)}`;

function filled(pipelines, given) {
  const shown = chosen(pipelines, given);
  return [failures(pipelines) ?? calm(pipelines), filters(pipelines, given), list(shown, given)];
}

function calm(pipelines) {
  const started = pipelines.filter(
    ({ health: state }) => !["not_started", "paused", "retired"].includes(state),
  );
  return element(
    "p",
    { class: "fine", role: "status" },
    started.length ? "Nothing needs a person now." : "No pipeline has run yet.",
  );
}

function nothing() {
  return card(
    "Nothing has run yet",
    element(
      "p",
      {},
      "A pipeline shows up here with its DAG. Put its file into the folder of pipelines, and create its topics.",
    ),
  );
}

function chosen(pipelines, given) {
  const text = (given.name ?? "").toLowerCase();
  return pipelines.filter(
    (pipeline) =>
      (!given.health || pipeline.health === given.health) &&
      Object.entries(FACETS).every(
        ([name, { of }]) => !given[name] || of(pipeline).includes(given[name]),
      ) &&
      pipeline.pipeline.toLowerCase().includes(text),
  );
}

function filters(pipelines, given) {
  const counts = Map.groupBy(pipelines, (pipeline) => pipeline.health);
  const { health: _health, all: _all, ...rest } = given;
  const choice = (value, text, count) =>
    element(
      "a",
      {
        class: `choice ${value}`,
        href: at({ ...rest, health: value }),
        "aria-current": (given.health ?? "") === value ? "true" : null,
      },
      `${text} `,
      element("b", {}, count),
    );
  return element(
    "div",
    { class: "filters" },
    element(
      "nav",
      { "aria-label": "Health", class: "choices" },
      choice("", "all", pipelines.length),
      ORDER.filter((state) => counts.has(state)).map((state) =>
        choice(state, words(state), counts.get(state).length),
      ),
    ),
    facets(pipelines, given),
    element(
      "form",
      { role: "search", onsubmit: (event) => event.preventDefault() },
      element("input", {
        type: "search",
        placeholder: "Filter by name",
        "aria-label": "Filter by name",
        value: given.name ?? "",
        oninput: (event) => typed(event.target, given),
      }),
    ),
  );
}

// What pipelines are filtered and grouped by → the values of a pipeline, and the group of those that have none.
const FACETS = {
  owner: {
    label: "Owners",
    of: (pipeline) => [pipeline.owner].filter(Boolean),
    none: "without an owner",
  },
  tag: { label: "Tags", of: (pipeline) => pipeline.tags, none: "without a tag" },
};

function facets(pipelines, given) {
  return Object.keys(FACETS).map((name) => facet(name, pipelines, given));
}

function facet(name, pipelines, given) {
  const { label, of } = FACETS[name];
  const values = [...new Set(pipelines.flatMap(of))].sort();
  // An owner that all pipelines share tells nothing.
  if (!values.length || (values.length === 1 && pipelines.every((pipeline) => of(pipeline).length)))
    return null;
  const { [name]: _chosen, all: _all, ...rest } = given;
  return element(
    "nav",
    { "aria-label": label, class: "choices" },
    values.map((value) =>
      element(
        "a",
        {
          class: "choice",
          href: at(given[name] === value ? rest : { ...rest, [name]: value }),
          "aria-current": given[name] === value ? "true" : null,
        },
        value,
      ),
    ),
    element(
      "a",
      {
        class: "choice",
        href: at({ ...given, group: given.group === name ? "" : name }),
        "aria-current": given.group === name ? "true" : null,
      },
      `group by ${name}`,
    ),
  );
}

// A name changes the address while it is typed, without a new entry in the browser's history.
function typed(input, given) {
  history.replaceState(null, "", at({ ...given, name: input.value }));
  dispatchEvent(new CustomEvent("sluice-typed"));
}

const COLUMNS = [
  {
    title: "Pipeline",
    cell: (pipeline) => link(`#/pipelines/${part(pipeline.pipeline)}`, pipeline.pipeline),
    sort: (pipeline) => pipeline.pipeline,
  },
  {
    title: "Health",
    cell: (pipeline) => [
      health(pipeline),
      pipeline.health === "not_started" &&
        element("small", { class: "why" }, ` ${awaited(pipeline)}`),
      pipeline.pause && element("small", { class: "why" }, " ", whyPaused(pipeline)),
    ],
    sort: (pipeline) => ORDER.indexOf(pipeline.health),
  },
  { title: "Unread", number: true, cell: unread, sort: (pipeline) => pipeline.unread ?? -1 },
  { title: "Newest batches", cell: (pipeline) => spark(pipeline.records) ?? "–" },
  {
    title: "Snapshot",
    cell: (pipeline) =>
      pipeline.snapshot
        ? element(
            "span",
            { title: `snapshot ${pipeline.snapshot.id}` },
            ago(pipeline.snapshot.published_at),
          )
        : "none",
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
    cell: letters,
    sort: (pipeline) => rejectedTotal(pipeline.dead_letters),
  },
];

function letters(pipeline) {
  const count = rejectedTotal(pipeline.dead_letters);
  const reasons = Object.entries(pipeline.dead_letters)
    .map(([reason, records]) => `${reason}: ${number(records)}`)
    .join("\n");
  return count
    ? element(
        "a",
        { href: `#/pipelines/${part(pipeline.pipeline)}/dead-letters`, title: reasons },
        number(count),
      )
    : "0";
}

function list(pipelines, given) {
  const column = COLUMNS.find(({ title, sort }) => sort && title === given.sort) ?? COLUMNS[1];
  const down = given.down === "1";
  const rows = [...pipelines].sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    if (a !== b) return a < b !== down ? -1 : 1;
    return first.pipeline < second.pipeline ? -1 : 1;
  });
  const choose = (by) => {
    location.hash = at({
      ...given,
      sort: by.title,
      down: (by === column && !down) || (by !== column && by.number) ? "1" : "",
    });
  };
  const sorting = { by: column.title, down, choose };
  const grouping = FACETS[given.group];
  if (!grouping) return section(rows, given, sorting, "Pipelines");
  const groups = new Map();
  for (const pipeline of rows) {
    const values = grouping.of(pipeline);
    for (const value of values.length ? values : [grouping.none])
      groups.set(value, [...(groups.get(value) ?? []), pipeline]);
  }
  return [...groups].map(([value, members]) => [
    element("h2", { class: "group" }, value, " ", badge(number(members.length))),
    section(members, given, sorting, `Pipelines of ${value}`),
  ]);
}

function section(rows, given, sorting, label) {
  const all = given.all === "1" || rows.length <= SHOWN;
  return element(
    "section",
    { class: "card lines" },
    table(COLUMNS, all ? rows : rows.slice(0, SHOWN), {
      label,
      empty: "No pipeline matches.",
      sorting,
    }),
    !all && element("p", {}, link(at({ ...given, all: "1" }), `Show all ${number(rows.length)}`)),
  );
}

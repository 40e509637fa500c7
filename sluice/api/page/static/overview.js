// All pipelines: what needs a person first, then a line for each pipeline, the worst first.

import { get, part, query } from "./api.js";
import { badge, card, element, link, table } from "./dom.js";
import { ago, number } from "./format.js";
import { awaited, failures, health, lastRun, ORDER, rejectedTotal, unread, words } from "./health.js";
import { spark } from "./spark.js";

const SHOWN = 100;

export async function overview(_path, search) {
  const pipelines = await get("/overview");
  const given = Object.fromEntries([...search].filter(([, value]) => value !== ""));
  return {
    title: "Pipelines",
    content: [element("h1", {}, "Pipelines"), ...(pipelines.length ? filled(pipelines, given) : [nothing()])],
  };
}

const at = (given) => `#/${query(given)}`;

function filled(pipelines, given) {
  const shown = chosen(pipelines, given);
  return [failures(pipelines) ?? calm(pipelines), filters(pipelines, given), list(shown, given)];
}

function calm(pipelines) {
  const started = pipelines.filter(({ health: state }) => !["not_started", "retired"].includes(state));
  return element("p", { class: "fine", role: "status" }, started.length ? "Nothing needs a person now." : "No pipeline has run yet.");
}

function nothing() {
  return card("Nothing has run yet",
    element("p", {}, "A pipeline shows up here with its DAG. Put its file into the folder of pipelines, and create its topics."));
}

function chosen(pipelines, given) {
  const text = (given.name ?? "").toLowerCase();
  return pipelines.filter((pipeline) => (!given.health || pipeline.health === given.health) && (!given.tag || pipeline.tags.includes(given.tag))
    && pipeline.pipeline.toLowerCase().includes(text));
}

function filters(pipelines, given) {
  const counts = Map.groupBy(pipelines, (pipeline) => pipeline.health);
  const { health: _health, all: _all, ...rest } = given;
  const choice = (value, text, count) => element("a", { class: `choice ${value}`, href: at({ ...rest, health: value }), "aria-current": (given.health ?? "") === value ? "true" : null }, `${text} `, element("b", {}, count));
  return element("div", { class: "filters" },
    element("nav", { "aria-label": "Health", class: "choices" }, choice("", "all", pipelines.length), ORDER.filter((state) => counts.has(state)).map((state) => choice(state, words(state), counts.get(state).length))),
    tags(pipelines, given),
    element("form", { role: "search", onsubmit: (event) => event.preventDefault() },
      element("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", value: given.name ?? "", oninput: (event) => typed(event.target, given) })));
}

function tags(pipelines, given) {
  const names = [...new Set(pipelines.flatMap((pipeline) => pipeline.tags))].sort();
  if (!names.length) return null;
  const { tag: _tag, all: _all, ...rest } = given;
  return element("nav", { "aria-label": "Tags", class: "choices" },
    names.map((tag) => element("a", { class: "choice", href: at(given.tag === tag ? rest : { ...rest, tag }), "aria-current": given.tag === tag ? "true" : null }, tag)),
    element("a", { class: "choice", href: at(given.group ? { ...given, group: "" } : { ...given, group: "tag" }), "aria-current": given.group ? "true" : null }, "group by tag"));
}

// A name changes the address while it is typed, without a new entry in the browser's history.
function typed(input, given) {
  history.replaceState(null, "", at({ ...given, name: input.value }));
  dispatchEvent(new CustomEvent("sluice-typed"));
}

const COLUMNS = [
  { title: "Pipeline", cell: (pipeline) => link(`#/pipelines/${part(pipeline.pipeline)}`, pipeline.pipeline), sort: (pipeline) => pipeline.pipeline },
  { title: "Health", cell: (pipeline) => [health(pipeline), pipeline.health === "not_started" && element("small", { class: "why" }, ` ${awaited(pipeline)}`)], sort: (pipeline) => ORDER.indexOf(pipeline.health) },
  { title: "Unread", number: true, cell: unread, sort: (pipeline) => pipeline.unread ?? -1 },
  { title: "Newest batches", cell: (pipeline) => spark(pipeline.records) ?? "–" },
  { title: "Snapshot", cell: (pipeline) => (pipeline.snapshot ? element("span", { title: `snapshot ${pipeline.snapshot.id}` }, ago(pipeline.snapshot.published_at)) : "none"), sort: (pipeline) => pipeline.snapshot?.published_at ?? "" },
  { title: "Last run", cell: (pipeline) => lastRun(pipeline.last_run), sort: (pipeline) => pipeline.last_run?.started_at ?? "" },
  { title: "Dead letters, 24 h", number: true, cell: letters, sort: (pipeline) => rejectedTotal(pipeline.dead_letters) },
];

function letters(pipeline) {
  const count = rejectedTotal(pipeline.dead_letters);
  const reasons = Object.entries(pipeline.dead_letters).map(([reason, records]) => `${reason}: ${number(records)}`).join("\n");
  return count ? element("a", { href: `#/pipelines/${part(pipeline.pipeline)}/dead-letters`, title: reasons }, number(count)) : "0";
}

function list(pipelines, given) {
  const column = COLUMNS.find(({ title, sort }) => sort && title === given.sort) ?? COLUMNS[1];
  const down = given.down === "1";
  const rows = [...pipelines].sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    if (a !== b) return (a < b) !== down ? -1 : 1;
    return first.pipeline < second.pipeline ? -1 : 1;
  });
  const choose = (by) => { location.hash = at({ ...given, sort: by.title, down: by === column && !down || by !== column && by.number ? "1" : "" }); };
  const sorting = { by: column.title, down, choose };
  if (given.group !== "tag") return section(rows, given, sorting, "Pipelines");
  const groups = Map.groupBy(rows.flatMap((pipeline) => (pipeline.tags.length ? pipeline.tags : ["without a tag"]).map((tag) => ({ tag, pipeline }))), ({ tag }) => tag);
  return [...groups].map(([tag, members]) => [element("h2", { class: "group" }, tag, " ", badge(number(members.length))), section(members.map(({ pipeline }) => pipeline), given, sorting, `Pipelines of ${tag}`)]);
}

function section(rows, given, sorting, label) {
  const all = given.all === "1" || rows.length <= SHOWN;
  return element("section", { class: "card lines" }, table(COLUMNS, all ? rows : rows.slice(0, SHOWN), { label, empty: "No pipeline matches.", sorting }),
    !all && element("p", {}, link(at({ ...given, all: "1" }), `Show all ${number(rows.length)}`)));
}

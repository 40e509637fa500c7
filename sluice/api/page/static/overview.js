// All pipelines: what needs a person first, then a line for each pipeline, the worst first.

import { get, query } from "./api.js";
import { badge, button, card, choices, element, link } from "./dom.js";
import { number } from "./format.js";
import { failures, ORDER, words } from "./health.js";
import { columnOf, pipelineLines } from "./pipeline_lines.js";

const SHOWN = 100;

export async function overview(_path, search) {
  const pipelines = await get("/overview");
  const given = {};
  for (const [name, value] of search) if (value !== "") given[name] = value;
  const content = pipelines.length ? filled(pipelines, given) : nothing();
  return { title: "Pipelines", content: [element("h1", {}, "Pipelines"), content] };
}

const at = (given) => `#/${query(given)}`;

function filled(pipelines, given) {
  const shown = chosen(pipelines, given);
  return [failures(pipelines) ?? calm(pipelines), filters(pipelines, given), list(shown, given)];
}

function calm(pipelines) {
  const isAtRest = ({ health }) => ["not_started", "paused", "retired"].includes(health);
  const text = pipelines.every(isAtRest)
    ? "No pipeline has run yet."
    : "Nothing needs a person now.";
  return element("p", { class: "fine", role: "status" }, text);
}

function nothing() {
  const text =
    "A pipeline shows up here with its DAG. Put its file into the folder of pipelines, and " +
    "create its topics.";
  return card("Nothing has run yet", element("p", {}, text));
}

// What pipelines are filtered and grouped by → the values of a pipeline, and the group of those
// that have none.
const FACETS = {
  owner: {
    label: "Owners",
    of: (pipeline) => [pipeline.owner].filter(Boolean),
    none: "without an owner",
  },
  tag: { label: "Tags", of: (pipeline) => pipeline.tags, none: "without a tag" },
};

function chosen(pipelines, given) {
  const text = (given.name ?? "").toLowerCase();
  const matches = (pipeline) => (name) =>
    !given[name] || FACETS[name].of(pipeline).includes(given[name]);
  return pipelines.filter(
    (pipeline) =>
      (!given.health || pipeline.health === given.health) &&
      Object.keys(FACETS).every(matches(pipeline)) &&
      pipeline.pipeline.toLowerCase().includes(text),
  );
}

function filters(pipelines, given) {
  const counts = Map.groupBy(pipelines, (pipeline) => pipeline.health);
  const { health: current = "", all: _all, ...rest } = given;
  const choice = (health, text, count) => ({
    href: at({ ...rest, health }),
    text: [`${text} `, element("b", {}, count)],
    isChosen: current === health,
  });
  const states = ORDER.filter((state) => counts.has(state));
  const all = states.map((state) => choice(state, words(state), counts.get(state).length));
  return element(
    "div",
    { class: "filters" },
    choices("Health", [choice("", "all", pipelines.length), ...all]),
    Object.keys(FACETS).map((name) => facet(name, pipelines, given)),
    nameFilter(given),
  );
}

function nameFilter(given) {
  const input = element("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter by name",
    value: given.name ?? "",
    oninput: () => typed(input.value, given),
  });
  const onsubmit = (event) => event.preventDefault();
  return element("form", { role: "search", onsubmit }, input);
}

// A name changes the address while it is typed, without a new entry in the browser's history.
function typed(name, given) {
  history.replaceState(null, "", at({ ...given, name }));
  dispatchEvent(new CustomEvent("sluice-typed"));
}

function facet(name, pipelines, given) {
  const { label, of } = FACETS[name];
  const values = [...new Set(pipelines.flatMap(of))].sort();
  // An owner that all pipelines share tells nothing.
  const isShared = values.length === 1 && pipelines.every((pipeline) => of(pipeline).length);
  if (!values.length || isShared) return null;
  const { [name]: current, all: _all, ...rest } = given;
  const all = values.map((value) => ({
    href: at(current === value ? rest : { ...rest, [name]: value }),
    text: value,
    isChosen: current === value,
  }));
  const isGrouped = given.group === name;
  const group = { ...given, group: isGrouped ? "" : name };
  all.push({ href: at(group), text: `group by ${name}`, isChosen: isGrouped });
  return choices(label, all);
}

function list(pipelines, given) {
  const column = columnOf(given.sort);
  const down = given.down === "1";
  const rows = sorted(pipelines, column, down);
  const choose = (by) => {
    const isDown = by === column ? !down : by.number;
    location.hash = at({ ...given, sort: by.title, down: isDown ? "1" : "" });
  };
  const sorting = { by: column.title, down, choose };
  const facet = FACETS[given.group];
  if (!facet) return section(rows, given, sorting, "Pipelines");
  return [...grouped(rows, facet)].map(([value, members]) => [
    element("h2", { class: "group" }, value, " ", badge(number(members.length))),
    section(members, given, sorting, `Pipelines of ${value}`),
  ]);
}

function sorted(pipelines, column, down) {
  return [...pipelines].sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    if (a !== b) return a < b !== down ? -1 : 1;
    return first.pipeline < second.pipeline ? -1 : 1;
  });
}

// Value of a facet → its pipelines, in the order of the pipelines.
function grouped(pipelines, { of, none }) {
  const groups = new Map();
  for (const pipeline of pipelines) {
    const values = of(pipeline);
    for (const value of values.length ? values : [none]) {
      if (!groups.has(value)) groups.set(value, []);
      groups.get(value).push(pipeline);
    }
  }
  return groups;
}

function section(rows, given, sorting, label) {
  const all = given.all === "1" || rows.length <= SHOWN;
  const more = link(at({ ...given, all: "1" }), `Show all ${number(rows.length)}`);
  return element(
    "section",
    { class: "card lines" },
    pipelineLines(all ? rows : rows.slice(0, SHOWN), label, sorting),
    !all && element("p", {}, more),
  );
}

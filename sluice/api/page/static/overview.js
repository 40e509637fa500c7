// All pipelines: first the failures that need a person, then a line for each pipeline, worst first.

import { get, query } from "./api.js";
import { badge, card, choices, element, link } from "./dom.js";
import { number } from "./format.js";
import { failures, ORDER, words } from "./health.js";
import { columnOf, pipelineLines } from "./pipeline_lines.js";

const SHOWN = 60;
const MOST = 100_000;

export async function overview(_path, search) {
  const given = {};
  for (const [name, value] of search) if (value !== "") given[name] = value;
  const { health, owner, tag, name } = given;
  const chosen = { health, owner, tag, name };
  // To sort or group pipelines, the page needs all of them.
  const isWhole = given.all === "1" || given.sort || given.group;
  const isChosen = Object.values(chosen).some(Boolean);
  const [summary, worst] = await Promise.all([
    get("/overview/summary", { ...chosen, limit: isWhole ? MOST : SHOWN }),
    // Failures are shown whatever filter is chosen below them.
    isChosen ? get("/overview", { limit: SHOWN }) : null,
  ]);
  const content = summary.pipelines ? filled(summary, worst ?? summary.first, given) : nothing();
  return { title: "Pipelines", content: [element("h1", {}, "Pipelines"), content] };
}

const at = (given) => `#/${query(given)}`;

function filled(summary, worst, given) {
  return [
    failures(worst) ?? calm(summary),
    more(summary, worst),
    filters(summary, given),
    list(summary, given),
  ];
}

// Says how many pipelines have failures besides the pipelines whose failures are shown.
function more({ failing }, worst) {
  const shown = worst.filter((pipeline) => pipeline.failures.length).length;
  if (failing <= shown) return null;
  return element("p", { class: "quiet" }, `Something is wrong with ${failing - shown} more.`);
}

function calm({ health, pipelines }) {
  const atRest = AT_REST.reduce((sum, state) => sum + (health[state] ?? 0), 0);
  const text = atRest === pipelines ? "No pipeline has run yet." : "Nothing needs a person now.";
  return element("p", { class: "fine", role: "status" }, text);
}

const AT_REST = ["not_started", "paused", "retired"];

function nothing() {
  const text =
    "A pipeline shows up here with its DAG. Put its file into the folder of pipelines, and " +
    "create its topics.";
  return card("Nothing has run yet", element("p", {}, text));
}

// The properties by which pipelines can be filtered and grouped → the counts over all pipelines,
// the values of one pipeline, and the title of the group without a value.
const FACETS = {
  owner: {
    label: "Owners",
    counts: ({ owners }) => owners,
    of: (pipeline) => [pipeline.owner].filter(Boolean),
    none: "without an owner",
  },
  tag: {
    label: "Tags",
    counts: ({ tags }) => tags,
    of: (pipeline) => pipeline.tags,
    none: "without a tag",
  },
};

function filters(summary, given) {
  const { health: current = "", all: _all, ...rest } = given;
  const choice = (health, text, count) => ({
    href: at({ ...rest, health }),
    text: [`${text} `, element("b", {}, number(count))],
    isChosen: current === health,
  });
  const states = ORDER.filter((state) => summary.health[state]);
  const all = states.map((state) => choice(state, words(state), summary.health[state]));
  return element(
    "div",
    { class: "filters" },
    choices("Health", [choice("", "all", summary.pipelines), ...all]),
    Object.keys(FACETS).map((name) => facet(name, summary, given)),
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

function facet(name, summary, given) {
  const { label, counts } = FACETS[name];
  const byValue = counts(summary);
  const values = Object.keys(byValue).filter(Boolean).sort();
  // If all pipelines have the same owner, there is nothing to filter.
  const isShared = values.length === 1 && byValue[values[0]] === summary.pipelines;
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

function list(summary, given) {
  const column = columnOf(given.sort);
  const down = given.down === "1";
  const rows = sorted(summary.first, column, down);
  const choose = (by) => {
    const isDown = by === column ? !down : by.number;
    location.hash = at({ ...given, sort: by.title, down: isDown ? "1" : "" });
  };
  const sorting = { by: column.title, down, choose };
  const facet = FACETS[given.group];
  const groups = facet ? grouped(rows, facet) : [{ rows }];
  const most = given.all === "1" ? MOST : SHOWN;
  const shown = groups.map((group) => ({ ...group, rows: group.rows.slice(0, most) }));
  const isCut = rows.length < summary.matching || groups.some((group) => group.rows.length > most);
  const all = link(at({ ...given, all: "1" }), `Show all ${number(summary.matching)}`);
  return element(
    "section",
    { class: "card lines" },
    pipelineLines(shown, sorting),
    isCut && element("p", {}, all),
  );
}

function sorted(pipelines, column, down) {
  return [...pipelines].sort((first, second) => {
    const [a, b] = [column.sort(first), column.sort(second)];
    if (a !== b) return a < b !== down ? -1 : 1;
    return first.pipeline < second.pipeline ? -1 : 1;
  });
}

// { title, rows } of each value of a facet, with its pipelines in their order.
function grouped(pipelines, { of, none }) {
  const groups = new Map();
  for (const pipeline of pipelines) {
    const values = of(pipeline);
    for (const value of values.length ? values : [none]) {
      if (!groups.has(value)) groups.set(value, []);
      groups.get(value).push(pipeline);
    }
  }
  return [...groups].map(([value, rows]) => ({
    title: [value, " ", badge(number(rows.length))],
    rows,
  }));
}

// A store: search by key, prefix and range, a key's windows as a chart, values as a table, and two
// snapshots compared.

import { curl, get, getExact, isExact, isNumber, part, query } from "./api.js";
import { badge, button, card, element, link, table } from "./dom.js";
import { counted, duration, json, number, time } from "./format.js";
import { isObject, pictures } from "./store_pictures.js";
import { fieldNames, kind, storePath, workers } from "./store_words.js";

const FIELDS = [
  ["key", "Key", "exactly this key"],
  ["prefix", "Prefix", "begins with this"],
  ["first", "First", "the smallest key"],
  ["last", "Last", "the largest key"],
];
const TIMES = [
  ["from", "From", "2026-11-21T12:00"],
  ["to", "To", "2026-11-21T13:00"],
];
const POINT = "A snapshot, such as 1.42, run:NAME for a run's last one, or a time";
const READ_POINT = ["as_of", "As of", "1.42 or a time", { title: POINT }];

export async function store([pipeline, name], search) {
  const info = (await get("/stores", { pipeline })).find((candidate) => candidate.store === name);
  const given = Object.fromEntries([...search].filter(([, value]) => value !== ""));
  const hash = storePath(pipeline, name);
  const head = [
    element(
      "div",
      { class: "title" },
      element("h1", {}, name, " ", info ? badge(kind(info)) : null),
      link(`#/pipelines/${part(pipeline)}/stores`, `Stores of ${pipeline}`),
    ),
  ];
  if (!info)
    return {
      title: name,
      content: [
        ...head,
        card("No such store", element("p", {}, "It does not exist, or you may not read it.")),
      ],
    };
  const isWindowed = info.kind === "window";
  return {
    title: name,
    live: false,
    content: [
      ...head,
      element(
        "p",
        { class: "quiet" },
        "Key: ",
        element("code", {}, info.key),
        ". Value: ",
        fieldNames(info.value),
        ". ",
        info.grace_ms !== null && `Grace ${duration(info.grace_ms / 1000)}. `,
        info.retention_ms !== null &&
          `Kept for ${duration(info.retention_ms / 1000)} after a window's end. `,
        workers(info.workers),
        ".",
      ),
      form(hash, given, isWindowed),
      given.before !== undefined
        ? await difference(pipeline, name, given)
        : await entries(info, given),
      compareForm(hash, given, info),
    ],
  };
}

function form(hash, given, isWindowed) {
  const fields = [...FIELDS, ...(isWindowed ? TIMES : []), READ_POINT];
  return element(
    "form",
    { class: "card search", role: "search", onsubmit: (event) => submit(event, hash) },
    fields.map(([name, label, hint, more]) => input(name, label, hint, given, more)),
    element("button", { class: "primary" }, "Search"),
  );
}

function compareForm(hash, given, info) {
  const newest = info.snapshot?.id ?? "";
  const title = "Compare two snapshots";
  return element(
    "form",
    { class: "card search", "aria-label": title, onsubmit: (event) => submit(event, hash) },
    element("h2", {}, title),
    input("before", "Before", "1.40 or a time", given, { required: true, title: POINT }),
    input("after", "After", `${newest}, newest`, given, { title: POINT }),
    element("button", {}, "Compare"),
  );
}

function input(name, label, hint, given, more = {}) {
  const value = given[name] ?? "";
  const attributes = { name, value, placeholder: hint, autocomplete: "off", spellcheck: "false" };
  return element("label", {}, label, element("input", { ...attributes, ...more }));
}

function submit(event, hash) {
  event.preventDefault();
  const target = hash + query(Object.fromEntries(new FormData(event.target)));
  document.activeElement?.blur();
  if (location.hash === target) dispatchEvent(new Event("hashchange"));
  else location.hash = target;
}

// Entries are lines on a wide screen, and cards on a narrow one.
const pageSize = () => (matchMedia("(max-width: 720px)").matches ? 25 : 100);

const RANGE = ["prefix", "first", "last", "from", "to", "as_of", "cursor"];

// The path and the parameters of a request for entries.
function ofRange({ pipeline, store: name }, given) {
  const request = { pipeline, limit: pageSize() };
  for (const id of RANGE) request[id] = given[id];
  return [`/stores/${part(name)}`, request];
}

function ofKey({ pipeline, store: name, kind: kindOfStore }, given) {
  const { key, as_of, from, to } = given;
  const times = kindOfStore === "window" ? { from, to } : {};
  const request = { pipeline, as_of, ...times };
  const path = `/stores/${part(name)}/keys`;
  // Browsers remove newlines and the segments "." and ".." from a path, so these keys are sent in
  // the query.
  if (/^\.{1,2}$|\n/.test(key)) return [path, { ...request, key }];
  return [`${path}/${part(key)}`, request];
}

async function entries(info, given) {
  const { pipeline, store: name } = info;
  const [path, request] = given.key === undefined ? ofRange(info, given) : ofKey(info, given);
  const reproduce = links(pipeline, name, given, path, request);
  let answer;
  try {
    answer = await getExact(path, request);
  } catch (error) {
    if (![400, 404, 410, 422].includes(error.status)) throw error;
    const reason = element("p", { role: "status" }, error.message);
    return card("Nothing found", reason, rejectedLink(pipeline, given), reproduce);
  }
  const { cursor: before, ...same } = given;
  const next = storePath(pipeline, name) + query({ ...same, cursor: answer.cursor });
  return [
    await pictures(info, given, answer.entries),
    card(
      "Values",
      element(
        "p",
        { class: "quiet", role: "status" },
        `${counted(answer.entries.length, "entry", "entries")} of snapshot `,
        element("code", {}, answer.snapshot.id),
        ", published ",
        time(answer.snapshot.published_at),
        answer.partial && badge("some workers are unavailable", "failed"),
        answer.standby && badge("a standby answered", "degraded"),
      ),
      values(answer.entries, pipeline, name, given),
      answer.cursor && element("p", {}, link(next, `Next ${pageSize()}`)),
      reproduce,
    ),
  ];
}

// If a key is missing, its records may have been rejected.
function rejectedLink(pipeline, { key }) {
  if (key === undefined) return null;
  const path = `#/pipelines/${part(pipeline)}/dead-letters${query({ since: "all", key })}`;
  return element("p", {}, link(path, "Look for dead letters with this key"));
}

function links(pipeline, name, given, path, request) {
  const view = new URL(location.href);
  view.hash = storePath(pipeline, name) + query(given);
  const command = element("pre", { tabindex: 0 }, curl(path, request));
  const done = element("span", { role: "status" });
  return element(
    "details",
    {},
    element("summary", {}, "Link and curl"),
    element("p", {}, "This view: ", element("a", { href: view.href, target: "_top" }, view.href)),
    command,
    element(
      "div",
      { class: "actions" },
      button("Copy the curl", () => copy(command, done)),
      done,
    ),
  );
}

// Copy a node's text. Browsers allow this only on pages over HTTPS and on this computer's own
// pages; elsewhere, select the text.
async function copy(node, done) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    done.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(node);
    done.textContent = "The text is selected: copy it with the keyboard.";
  }
}

// Key, window, and a column for each field of the values.
function values(all, pipeline, name, given) {
  const objects = all.filter((entry) => isObject(entry.value));
  const fields = new Set(objects.flatMap((entry) => Object.keys(entry.value)));
  const pathOf = (key) => storePath(pipeline, name) + query({ key, as_of: given.as_of });
  const columns = [
    { title: "Key", cell: (entry) => link(pathOf(entry.key), entry.key || "(empty)") },
  ];
  if (all.some((entry) => entry.start)) {
    columns.push({ title: "Start", cell: (entry) => time(entry.start) });
    columns.push({ title: "Length", number: true, cell: (entry) => duration(lengthOf(entry)) });
  }
  if (objects.length < all.length)
    columns.push({
      title: "Value",
      number: all.every((entry) => isNumber(entry.value)),
      cell: (entry) => (isObject(entry.value) ? "" : value(entry.value)),
    });
  for (const field of fields)
    columns.push({
      title: field,
      number: objects.every((entry) => isNumber(entry.value[field])),
      cell: (entry) => fieldOf(entry.value, field),
    });
  return table(columns, all, { label: "Values", empty: "There are no entries." });
}

const lengthOf = ({ start, end }) => (Date.parse(end) - Date.parse(start)) / 1000;

function fieldOf(data, field) {
  return isObject(data) && field in data ? value(data[field]) : "";
}

const value = (data) => element("code", {}, isExact(data) ? data.source : json(data));

async function difference(pipeline, name, given) {
  const path = `/stores/${part(name)}/diff`;
  const request = { pipeline, before: given.before, after: given.after };
  const reproduce = links(pipeline, name, given, path, request);
  let diff;
  try {
    diff = await getExact(path, request);
  } catch (error) {
    if (![400, 404, 410, 422, 503].includes(error.status)) throw error;
    return card("Nothing to compare", element("p", { role: "status" }, error.message), reproduce);
  }
  return card(
    `Snapshots ${diff.before.id} and ${diff.after.id}`,
    element(
      "p",
      { role: "status" },
      ["same", ...CHANGES].map((what) => countOf(diff, what)),
    ),
    table(DIFFERENCE, diff.examples, { label: "Examples", empty: "All entries are the same." }),
    reproduce,
  );
}

const CHANGES = ["changed", "missing", "added"];

function countOf(diff, what) {
  const isMarked = diff[what] > 0 && CHANGES.includes(what);
  return [badge(`${what}: ${number(diff[what])}`, isMarked ? "behind" : ""), " "];
}

const orAbsent = (data) => (data === undefined ? "–" : value(data));
const DIFFERENCE = [
  { title: "Key", cell: (example) => example.key || "(empty)" },
  { title: "Window", cell: (example) => time(example.start) },
  { title: "Kind", cell: (example) => badge(example.kind) },
  { title: "Before", cell: (example) => orAbsent(example.before) },
  { title: "After", cell: (example) => orAbsent(example.after) },
];

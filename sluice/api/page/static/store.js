// A store: search by key, prefix and range, a key's windows as a chart, values as a table, and two snapshots compared.

import { curl, get, getExact, part, query } from "./api.js";
import { badge, button, card, element, link, table } from "./dom.js";
import { ago, duration, json, number, time } from "./format.js";
import { isExact, isObject, pictures } from "./store_pictures.js";
import { fieldNames, kind, storePath, workers } from "./stores.js";

export async function stores() {
  const all = await get("/stores", { entries: true });
  return {
    title: "Stores",
    content: [
      element("h1", {}, "Stores"),
      element(
        "section",
        { class: "card" },
        table(
          [
            {
              title: "Store",
              cell: (info) => link(storePath(info.pipeline, info.store), info.store),
            },
            {
              title: "Pipeline",
              cell: (info) => link(`#/pipelines/${part(info.pipeline)}`, info.pipeline),
            },
            { title: "Kind", cell: (info) => badge(kind(info)) },
            { title: "Key", cell: (info) => element("code", {}, info.key) },
            { title: "Entries", number: true, cell: (info) => number(info.entries) },
            { title: "Workers", cell: (info) => workers(info.workers) },
            {
              title: "Snapshot",
              cell: (info) =>
                info.snapshot
                  ? [element("code", {}, info.snapshot.id), " ", ago(info.snapshot.published_at)]
                  : "none",
            },
          ],
          all,
          { label: "Stores", empty: "No pipeline has published a store yet." },
        ),
      ),
    ],
  };
}

const FIELDS = [
  ["key", "Key", "exactly this key"],
  ["prefix", "Prefix", "keys that begin with it"],
  ["first", "First", "the smallest key"],
  ["last", "Last", "the largest key"],
];
const TIMES = [
  ["from", "From", "2026-11-21T12:00"],
  ["to", "To", "2026-11-21T13:00"],
];
const READ_POINT = ["as_of", "As of", "1.42, run:NAME or a time"];

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
        ". Fields: ",
        fieldNames(info.value),
        ". ",
        info.grace_ms !== null && `Grace ${duration(info.grace_ms / 1000)}. `,
        info.retention_ms !== null &&
          `Kept for ${duration(info.retention_ms / 1000)} after a window's end. `,
        workers(info.workers),
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
    fields.map(([id, label, hint]) =>
      element(
        "label",
        {},
        label,
        element("input", {
          name: id,
          value: given[id] ?? "",
          placeholder: hint,
          autocomplete: "off",
          spellcheck: "false",
        }),
      ),
    ),
    element("button", { class: "primary" }, "Search"),
  );
}

function compareForm(hash, given, info) {
  const newest = info.snapshot?.id ?? "";
  return element(
    "form",
    {
      class: "card search",
      "aria-label": "Compare two snapshots",
      onsubmit: (event) => submit(event, hash),
    },
    element("h2", {}, "Compare two snapshots"),
    element(
      "label",
      {},
      "Before",
      element("input", {
        name: "before",
        required: true,
        value: given.before ?? "",
        placeholder: "1.40, run:NAME or a time",
      }),
    ),
    element(
      "label",
      {},
      "After",
      element("input", {
        name: "after",
        value: given.after ?? "",
        placeholder: `${newest}, the newest`,
      }),
    ),
    element("button", {}, "Compare"),
  );
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

async function entries(info, given) {
  const { pipeline, store: name } = info;
  const isWindowed = info.kind === "window";
  const storePart = `/stores/${part(name)}`;
  const parameters = {
    pipeline,
    ...Object.fromEntries(
      RANGE.filter((id) => given[id] !== undefined).map((id) => [id, given[id]]),
    ),
  };
  // Browsers remove newlines and the segments "." and ".." from a path, so these keys are sent in the query.
  const inQuery = /^\.{1,2}$|\n/.test(given.key ?? "");
  let path = storePart,
    request = { ...parameters, limit: pageSize() };
  if (given.key !== undefined) {
    const { pipeline: _, as_of, from, to } = parameters;
    path = inQuery ? `${storePart}/keys` : `${storePart}/keys/${part(given.key)}`;
    request = {
      pipeline,
      as_of,
      ...(isWindowed ? { from, to } : {}),
      ...(inQuery ? { key: given.key } : {}),
    };
  }
  const reproduce = links(pipeline, name, given, path, request);
  let answer;
  try {
    answer = await getExact(path, request);
  } catch (error) {
    if (![400, 404, 410, 422].includes(error.status)) throw error;
    return card("Nothing found", element("p", { role: "status" }, error.message), reproduce);
  }
  const { cursor: before, ...same } = given;
  return [
    await pictures(info, given, answer.entries),
    card(
      "Values",
      element(
        "p",
        { class: "quiet", role: "status" },
        `${number(answer.entries.length)} ${answer.entries.length === 1 ? "entry" : "entries"} of snapshot `,
        element("code", {}, answer.snapshot.id),
        ", published ",
        time(answer.snapshot.published_at),
        answer.partial && badge("some workers are unavailable", "failed"),
        answer.standby && badge("a standby answered", "degraded"),
      ),
      values(answer.entries, pipeline, name, given),
      answer.cursor &&
        element(
          "p",
          {},
          link(
            storePath(pipeline, name) + query({ ...same, cursor: answer.cursor }),
            `Next ${pageSize()}`,
          ),
        ),
      reproduce,
    ),
  ];
}

function links(pipeline, name, given, path, request) {
  const view = new URL(location.href);
  view.hash = storePath(pipeline, name) + query(given);
  return element(
    "details",
    {},
    element("summary", {}, "Link and curl"),
    element("p", {}, "This view: ", element("a", { href: view.href, target: "_top" }, view.href)),
    element("pre", { tabindex: 0 }, curl(path, request)),
    button("Copy the curl", () => navigator.clipboard?.writeText(curl(path, request))),
  );
}

// Key, window, and a column for each field of the values.
function values(all, pipeline, name, given) {
  const fields = [
    ...new Set(all.flatMap((entry) => (isObject(entry.value) ? Object.keys(entry.value) : []))),
  ];
  const columns = [
    {
      title: "Key",
      cell: (entry) =>
        link(
          storePath(pipeline, name) + query({ key: entry.key, as_of: given.as_of }),
          entry.key || "(empty)",
        ),
    },
  ];
  if (all.some((entry) => entry.start)) {
    columns.push({ title: "Start", cell: (entry) => time(entry.start) });
    columns.push({
      title: "Length",
      number: true,
      cell: (entry) => duration((Date.parse(entry.end) - Date.parse(entry.start)) / 1000),
    });
  }
  if (all.some((entry) => !isObject(entry.value)))
    columns.push({
      title: "Value",
      cell: (entry) => (isObject(entry.value) ? "" : value(entry.value)),
    });
  for (const field of fields)
    columns.push({
      title: field,
      cell: (entry) =>
        isObject(entry.value) && field in entry.value ? value(entry.value[field]) : "",
    });
  return table(columns, all, { label: "Values", empty: "There are no entries." });
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
      ["same", "changed", "missing", "added"].map((kind) => [
        badge(`${kind}: ${number(diff[kind])}`, diff[kind] && kind !== "same" ? "behind" : ""),
        " ",
      ]),
    ),
    table(
      [
        { title: "Key", cell: (example) => example.key || "(empty)" },
        { title: "Window", cell: (example) => time(example.start) },
        { title: "Kind", cell: (example) => badge(example.kind) },
        {
          title: "Before",
          cell: (example) => (example.before === undefined ? "–" : value(example.before)),
        },
        {
          title: "After",
          cell: (example) => (example.after === undefined ? "–" : value(example.after)),
        },
      ],
      diff.examples,
      { label: "Examples", empty: "All entries are the same." },
    ),
    reproduce,
  );
}

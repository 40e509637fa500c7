// A pipeline's dead letters: groups by reason and step, the newest of the open group, and
// re-drives.

import { get, part, post, query } from "./api.js";
import { confirm } from "./confirm.js";
import { badge, button, card, choices, element, link, report, table } from "./dom.js";
import { ago, counted, number } from "./format.js";
import { letterCard } from "./dead_letter.js";
import { tabView } from "./pipeline.js";

const SHOWN_LETTERS = 20;
const MOST_LETTERS = 100;
const DAY_MS = 86_400_000;

// An open group is not refreshed by itself, because somebody may be correcting one of its values.
const isLive = (search) => !search.has("reason");

export const deadLetters = tabView("dead-letters", show, isLive);

async function show({ name, overview, search, refresh, hash }) {
  if (!overview.snapshot)
    return card("None", element("p", {}, "There are none before the first run."));
  const given = {};
  for (const [id, value] of search) if (value !== "" || id === "step") given[id] = value;
  const path = `/pipelines/${part(name)}/dead_letters`;
  const since = sinceOf(given);
  // This answer is for the groups and their examples, so a single letter is enough.
  const answer = await get(path, { since, key: given.key, limit: 1 });
  const ofKey = given.key === undefined ? {} : { key: given.key };
  const context = {
    path,
    own: `${hash}/dead-letters`,
    given,
    mayEdit: overview.may_edit,
    contracts: answer.contracts,
    send: (chosen, what) => redrive(name, path, { ...chosen, ...ofKey, since }, what, refresh),
  };
  const isOpen = given.reason !== undefined || given.step !== undefined;
  return [
    times(context, answer),
    keyForm(context),
    answer.groups.length ? groups(answer.groups, context) : none(context),
    isOpen && opened(context, await lettersOf(path, given, since)),
  ];
}

function sinceOf(given) {
  if (given.since === "all") return undefined;
  return given.since || new Date(Date.now() - DAY_MS).toISOString();
}

// Finds the dead letters of a key: its missing records may be among them.
function keyForm({ own, given }) {
  const label = "Key of the record";
  const value = given.key ?? "";
  const input = element("input", {
    type: "search",
    placeholder: label,
    "aria-label": label,
    value,
  });
  const onsubmit = (event) => {
    event.preventDefault();
    document.activeElement?.blur();
    location.hash = own + query({ since: given.since, key: input.value });
  };
  const attributes = { class: "choices", role: "search", onsubmit };
  return element("form", attributes, input, element("button", {}, "Find"));
}

function none({ own, given }) {
  const ofKey = given.key === undefined ? "" : ` with the key ${given.key}`;
  if (given.since === "all")
    return card("None", element("p", {}, `There are no dead letters${ofKey}.`));
  const all = link(`${own}${query({ since: "all", key: given.key })}`, "Show all");
  return card("None", element("p", {}, `There were none${ofKey} in this time. `, all));
}

async function lettersOf(path, { reason, partition, step, key, most }, since) {
  const limit = most ? MOST_LETTERS : SHOWN_LETTERS;
  const text = query({ reason, partition, key, since, limit });
  // An empty step is a choice, too, so it must stay in the query.
  const answer = await get(path + text + (step === undefined ? "" : `&step=${part(step)}`));
  return answer.dead_letters;
}

// The newest dead letters of the open group.
function opened(context, letters) {
  const { own, given } = context;
  const where = given.step ? ` in ${given.step}` : "";
  const isPart = letters.length >= SHOWN_LETTERS;
  const newest = `${isPart ? "the newest " : ""}${counted(letters.length, "dead letter")}`;
  const more = `${own}?${new URLSearchParams({ ...given, most: 1 })}`;
  return element(
    "section",
    {
      "aria-label": "Dead letters of the group",
      class: "stack",
      "data-reveal": JSON.stringify([given.reason, given.step, given.partition]),
    },
    element("h2", {}, `${given.reason ?? "All reasons"}${where}: ${newest}`),
    letters.map((letter) => letterCard(letter, context)),
    letters.length === SHOWN_LETTERS &&
      element("p", {}, link(more, `Show the newest ${MOST_LETTERS}`)),
  );
}

function times({ own, given, send, mayEdit }, answer) {
  const mayRedrive = answer.groups.some((group) => !group.step && group.count > group.redriven);
  const total = Object.values(answer.reasons).reduce((sum, count) => sum + count, 0);
  const { since: chosen = "", ...rest } = given;
  const choice = (since, text) => ({
    href: own + query({ ...rest, since }),
    text,
    isChosen: chosen === since,
  });
  const redriveAll = () => send({}, "all records that could not be read");
  return choices(
    "Time",
    [choice("", "Last 24 hours"), choice("all", "All times")],
    element("span", { class: "quiet" }, counted(total, "dead letter")),
    mayEdit && mayRedrive && button("Re-drive all that could not be read", redriveAll),
    !answer.complete && badge("the search took too long: there are more", "behind"),
  );
}

function groups(all, context) {
  const columns = [
    { title: "Reason", cell: (group) => reasonOf(group, context) },
    { title: "Step", cell: (group) => group.step || "reading" },
    { title: "Count", number: true, cell: (group) => number(group.count) },
    { title: "Newest", cell: (group) => ago(group.example.at) },
    { title: "Example", cell: exampleOf },
    { title: "Re-driven", cell: outcome },
    { title: "Action", cell: (group) => actions(group, context) },
  ];
  const label = "Groups of dead letters";
  return element("section", { class: "card" }, table(columns, all, { label }));
}

function pathOf({ reason, step }, { own, given }) {
  const same = {};
  for (const name of ["since", "key"]) if (given[name]) same[name] = given[name];
  return `${own}?${new URLSearchParams({ ...same, reason, step })}`;
}

function reasonOf(group, context) {
  const { reason, step } = context.given;
  const isOpen = reason === group.reason && (step === undefined || step === group.step);
  return link(pathOf(group, context), badge(group.reason, isOpen ? "running" : "failed"));
}

const exampleOf = ({ example }) => [
  element("div", { class: "error" }, example.detail),
  element("code", { class: "one-line" }, example.value ?? "null"),
];

function actions(group, context) {
  const open = link(pathOf(group, context), "Open");
  const left = group.count - group.redriven;
  if (!context.mayEdit || !left) return open;
  const { reason, step } = group;
  const what = `the group ${reason}${step ? ` in ${step}` : ""}`;
  const send = () => context.send({ reason, step }, what);
  return [open, " ", button(`Re-drive ${number(left)}`, send)];
}

function outcome(group) {
  if (!group.redriven) return "none";
  return [
    `${number(group.redriven)} `,
    group.failed_again
      ? badge(`${number(group.failed_again)} failed again`, "failed")
      : badge("none failed again", "success"),
  ];
}

async function redrive(name, path, chosen, what, refresh) {
  const text = `Each record is written to its topic again, once. The next run of ${name} reads it.`;
  if (!(await confirm(`Re-drive ${what}?`, text, "Re-drive"))) return;
  await report(refresh, async () => {
    // A single record is chosen by its place, so leave out the limit of time.
    const body = chosen.place ? { ...chosen, since: undefined } : chosen;
    const done = await post(`${path}/redrive`, body);
    const skipped = Object.entries(done.skipped);
    return [
      `${number(done.redriven)} re-driven. `,
      skipped.map(([why, count]) => `${number(count)} left: ${why}`).join("; "),
      done.more ? " There are more: re-drive again." : "",
    ];
  });
}

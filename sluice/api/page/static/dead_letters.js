// A pipeline's dead letters as work: groups by reason and step, the record beside its contract, a correction to try, and
// what came of re-driving.

import { get, part, post, query } from "./api.js";
import { badge, button, card, confirm, element, link, report, table } from "./dom.js";
import { ago, bytes, counted, number, time } from "./format.js";
import { tabView } from "./pipeline.js";

const SHOWN_LETTERS = 20,
  MOST_LETTERS = 100;
const MOST_BYTES = 10_000; // of a value that the API returns

export const deadLetters = tabView(
  "dead-letters",
  async ({ name, overview, search, refresh, hash }) => {
    if (!overview.snapshot)
      return card("None", element("p", {}, "There are none before the first run."));
    const given = Object.fromEntries(
      [...search].filter(([id, value]) => value !== "" || id === "step"),
    );
    const own = `${hash}/dead-letters`;
    const path = `/pipelines/${part(name)}/dead_letters`;
    const since =
      given.since === "all"
        ? undefined
        : given.since || new Date(Date.now() - 86_400_000).toISOString();
    const isOpen = given.reason !== undefined || given.step !== undefined;
    // Without an open group, the groups' examples are enough.
    const answer = await get(path, { since, limit: 1 });
    const opened = isOpen
      ? await letters(
          path,
          {
            reason: given.reason,
            partition: given.partition,
            since,
            limit: given.most ? MOST_LETTERS : SHOWN_LETTERS,
          },
          given.step,
        )
      : null;
    const send = (chosen, what) =>
      redrive(name, path, { ...chosen, ...(since ? { since } : {}) }, what, refresh);
    const context = {
      name,
      path,
      own,
      given,
      since,
      send,
      refresh,
      mayEdit: overview.may_edit,
      contracts: answer.contracts,
    };
    return [
      times(context, answer),
      answer.groups.length
        ? groups(answer.groups, context)
        : card(
            "None",
            element(
              "p",
              {},
              given.since === "all"
                ? "There are no dead letters."
                : [
                    "There were none in this time. ",
                    link(`${own}${query({ since: "all" })}`, "Show all"),
                  ],
            ),
          ),
      opened &&
        element(
          "section",
          { "aria-label": "Dead letters of the group", class: "stack" },
          element(
            "h2",
            {},
            `${given.reason ?? "All reasons"}${given.step ? ` in ${given.step}` : ""}: the newest ${counted(opened.dead_letters.length, "dead letter")}`,
          ),
          opened.dead_letters.map((letter) => letterCard(letter, context)),
          opened.dead_letters.length === SHOWN_LETTERS &&
            element(
              "p",
              {},
              link(
                `${own}?${new URLSearchParams({ ...given, most: 1 })}`,
                `Show the newest ${MOST_LETTERS}`,
              ),
            ),
        ),
    ];
  },
  (search) => !search.has("reason"),
); // somebody may be correcting a value

// An empty step is a choice, too, so it must stay in the query.
function letters(path, parameters, step) {
  const text = query(parameters);
  const more = step === undefined ? "" : `${text ? "&" : "?"}step=${part(step)}`;
  return get(`${path}${text}${more}`);
}

function times({ own, given, send, mayEdit }, answer) {
  const mayRedrive =
    mayEdit && answer.groups.some((group) => !group.step && group.count > group.redriven);
  const total = Object.values(answer.reasons).reduce((sum, count) => sum + count, 0);
  const { since: _since, ...rest } = given;
  const choice = (since, text) =>
    element(
      "a",
      {
        class: "choice",
        href: own + query({ ...rest, since }),
        "aria-current": (given.since ?? "") === since ? "true" : null,
      },
      text,
    );
  return element(
    "nav",
    { class: "choices", "aria-label": "Time" },
    choice("", "Last 24 hours"),
    choice("all", "All times"),
    element("span", { class: "quiet" }, counted(total, "dead letter")),
    mayRedrive &&
      button("Re-drive all that could not be read", () =>
        send({}, "all records that could not be read"),
      ),
    !answer.complete && badge("the search took too long: there are more", "behind"),
  );
}

function groups(all, context) {
  const { own, given, mayEdit, send } = context;
  const open = (group) =>
    `${own}?${new URLSearchParams({ ...(given.since ? { since: given.since } : {}), reason: group.reason, step: group.step })}`;
  const isOpen = (group) =>
    given.reason === group.reason && (given.step === undefined || given.step === group.step);
  return element(
    "section",
    { class: "card" },
    table(
      [
        {
          title: "Reason",
          cell: (group) =>
            link(open(group), badge(group.reason, isOpen(group) ? "running" : "failed")),
        },
        { title: "Step", cell: (group) => group.step || "reading" },
        { title: "Count", number: true, cell: (group) => number(group.count) },
        { title: "Newest", cell: (group) => ago(group.example.at) },
        {
          title: "Example",
          cell: (group) => [
            element("div", { class: "error" }, group.example.detail),
            element("code", { class: "one-line" }, group.example.value ?? "null"),
          ],
        },
        { title: "Re-driven", cell: (group) => outcome(group) },
        {
          title: "Action",
          cell: (group) => [
            link(open(group), "Open"),
            " ",
            mayEdit &&
              group.count > group.redriven &&
              button(`Re-drive ${number(group.count - group.redriven)}`, () =>
                send(
                  { reason: group.reason, step: group.step },
                  `the group ${group.reason}${group.step ? ` in ${group.step}` : ""}`,
                ),
              ),
          ],
        },
      ],
      all,
      { label: "Groups of dead letters" },
    ),
  );
}

function outcome(group) {
  if (!group.redriven) return "none";
  return [
    `${number(group.redriven)}. `,
    group.failed_again
      ? badge(`${number(group.failed_again)} failed again`, "failed")
      : badge("none failed again", "success"),
  ];
}

function letterCard(letter, context) {
  const { mayEdit, send, contracts } = context;
  const [topic] = letter.source.split("/");
  const contract = contracts[topic];
  const work = element("div", { class: "sides" });
  const details = element(
    "details",
    {
      "data-key": letter.place,
      ontoggle: () => {
        if (details.open && !work.childElementCount) fill(work, letter, topic, contract, context);
      },
    },
    element("summary", {}, "Record, headers and contract"),
    work,
  );
  return element(
    "article",
    { class: "card letter" },
    element(
      "div",
      { class: "title" },
      element(
        "h3",
        {},
        badge(letter.reason, "failed"),
        " ",
        letter.source || letter.step || letter.place,
      ),
      state(letter) ??
        (mayEdit &&
          (letter.not_redrivable
            ? badge(letter.not_redrivable)
            : button("Re-drive", () =>
                send({ place: letter.place }, `the record ${letter.source}`),
              ))),
    ),
    element("p", { class: "error" }, letter.detail),
    element(
      "p",
      { class: "quiet" },
      "Written ",
      time(letter.at),
      letter.step && `, ${letter.step}`,
      `, ${bytes(letter.bytes)}`,
      ". Key: ",
      letter.key === null ? "null" : element("code", {}, letter.key),
    ),
    letter.history.length > 0 &&
      element(
        "p",
        {},
        badge(`failed ${letter.history.length + 1} times`, "behind"),
        " before: ",
        letter.history
          .map(
            (failure) =>
              `${failure.reason}: ${failure.detail}${failure.at ? ` (${failure.at})` : ""}`,
          )
          .join("; "),
      ),
    details,
  );
}

function state(letter) {
  if (!letter.redriven_at) return null;
  return element(
    "span",
    {},
    badge(
      letter.failed_again ? "re-driven, failed again" : "re-driven",
      letter.failed_again ? "failed" : "success",
    ),
    " ",
    time(letter.redriven_at),
    letter.redriven_to && ` as ${letter.redriven_to}`,
  );
}

// The record, its headers and its contract side by side, and a form to correct the value.
function fill(work, letter, topic, contract, context) {
  const headers = [
    ...Object.entries(letter.sluice_headers),
    ...letter.headers.map(({ name, value }) => [name, value]),
  ];
  const problems = element("div", { role: "status" });
  const rows = Object.entries(contract ?? {}).map(([field, kind]) =>
    element(
      "div",
      { "data-field": field },
      element("dt", {}, element("code", {}, field || "value")),
      element("dd", {}, kind),
    ),
  );
  const mayCorrect =
    context.mayEdit &&
    !letter.redriven_at &&
    !letter.not_redrivable &&
    letter.value !== null &&
    letter.bytes <= MOST_BYTES;
  const value = element("textarea", {
    rows: 10,
    spellcheck: "false",
    "aria-label": "Value",
    readonly: !mayCorrect,
  });
  value.value = pretty(letter.value);
  const check = async () => {
    const answer = await post(`${context.path}/check`, { topic, value: value.value }).catch(
      (error) => ({ problems: [{ path: "", detail: error.message }], has_contract: true }),
    );
    problems.replaceChildren(...verdict(answer));
    const marked = new Set(answer.problems.map(({ path }) => path.replaceAll(/\[\d+\]/g, "[]")));
    for (const row of rows) row.classList.toggle("wrong", marked.has(row.dataset.field));
    return answer;
  };
  const original = value.value;
  const correct = async () => {
    await check();
    context.send(
      { place: letter.place, ...(value.value === original ? {} : { value: value.value }) },
      `the record ${letter.source}${value.value === original ? "" : " with the corrected value"}`,
    );
  };
  work.append(
    element(
      "div",
      {},
      element("h4", {}, "Value"),
      value,
      problems,
      element(
        "div",
        { class: "actions" },
        contract && button("Check against the contract", check),
        mayCorrect && button("Re-drive with this value", correct, { class: "primary" }),
      ),
      letter.bytes > MOST_BYTES &&
        element(
          "p",
          { class: "quiet" },
          "The value is too large to be shown in full, so it cannot be corrected here.",
        ),
    ),
    element(
      "div",
      {},
      element("h4", {}, topic ? `Contract of ${topic}` : "Contract"),
      rows.length
        ? element("dl", { class: "contract" }, rows)
        : element("p", { class: "quiet" }, "The contract is unknown."),
    ),
    element(
      "div",
      {},
      element("h4", {}, `Headers of ${letter.place}`),
      element(
        "dl",
        {},
        headers.map(([name, text]) => [
          element("dt", {}, name),
          element("dd", {}, text === null ? element("i", {}, "null") : element("code", {}, text)),
        ]),
      ),
    ),
  );
  if (contract && letter.value !== null) check();
}

function pretty(text) {
  if (text === null) return "null";
  try {
    // Numbers keep their digits: only a text without long numbers is laid out anew.
    return /\d{16}|\d\.\d*0\b/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function verdict({ problems, has_contract: isKnown }) {
  if (!isKnown)
    return [element("p", { class: "quiet" }, "The contract is unknown, so nothing is checked.")];
  if (!problems.length) return [badge("the contract accepts this value", "success")];
  return [
    element(
      "ul",
      { class: "problems" },
      problems.map(({ path, detail }) =>
        element("li", {}, path && [element("code", {}, path), ": "], detail),
      ),
    ),
  ];
}

async function redrive(name, path, chosen, what, refresh) {
  const text = `Each record is written to its topic again, once. The next run of ${name} reads it.`;
  if (!(await confirm(`Re-drive ${what}?`, text, "Re-drive"))) return;
  await report(refresh, async () => {
    const { since, ...rest } = chosen;
    const done = await post(`${path}/redrive`, rest.place ? rest : chosen);
    const skipped = Object.entries(done.skipped).map(
      ([why, count]) => `${number(count)} left: ${why}`,
    );
    return [
      `${number(done.redriven)} re-driven. `,
      skipped.join("; "),
      done.more && " There are more: re-drive again.",
    ].filter(Boolean);
  });
}

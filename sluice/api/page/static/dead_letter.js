// One dead letter: the record beside its contract, a correction to try, and the result of
// re-driving it.

import { post } from "./api.js";
import { badge, button, element } from "./dom.js";
import { bytes, time } from "./format.js";

const MOST_BYTES = 10_000; // the API cuts off a longer value
const TOO_LARGE = "The value is too large to be shown in full, so it cannot be corrected here.";

export function letterCard(letter, context) {
  return element(
    "article",
    { class: "card letter" },
    element("div", { class: "title" }, title(letter), state(letter) ?? action(letter, context)),
    element("p", { class: "error" }, letter.detail),
    element("p", { class: "quiet" }, facts(letter)),
    letter.history.length > 0 && element("p", {}, earlierFailures(letter)),
    workplace(letter, context),
  );
}

function title(letter) {
  const where = letter.source || letter.step || letter.place;
  return element("h3", {}, badge(letter.reason, "failed"), " ", where);
}

// The result of re-driving the letter; null if it was not re-driven.
function state(letter) {
  if (!letter.redriven_at) return null;
  const result = letter.failed_again
    ? badge("re-driven, failed again", "failed")
    : badge("re-driven", "success");
  const target = letter.redriven_to && ` as ${letter.redriven_to}`;
  return element("span", {}, result, " ", time(letter.redriven_at), target);
}

function action(letter, { mayEdit, send }) {
  if (!mayEdit) return null;
  if (letter.not_redrivable) return badge(letter.not_redrivable);
  return button("Re-drive", () => send({ place: letter.place }, `the record ${letter.source}`));
}

const facts = (letter) => [
  "Written ",
  time(letter.at),
  letter.step && `, ${letter.step}`,
  `, ${bytes(letter.bytes)}`,
  ". Key: ",
  letter.key === null ? "null" : element("code", {}, letter.key),
];

function earlierFailures({ history }) {
  const texts = history.map(
    ({ reason, detail, at }) => `${reason}: ${detail}${at ? ` (${at})` : ""}`,
  );
  const count = badge(`failed ${history.length + 1} times`, "behind");
  return [count, " before: ", texts.join("; ")];
}

// The record, its headers and its contract; made when somebody opens it.
function workplace(letter, context) {
  const work = element("div", { class: "sides" });
  const open = () => {
    if (details.open && !work.childElementCount) fill(work, letter, context);
  };
  const summary = element("summary", {}, "Record, headers and contract");
  const attributes = { "data-key": letter.place, ontoggle: open };
  const details = element("details", attributes, summary, work);
  return details;
}

function fill(work, letter, context) {
  const [topic] = letter.source.split("/");
  const contract = context.contracts[topic];
  const fields = Object.entries(contract ?? {}).map(contractField);
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
  const original = value.value;
  const problems = element("div", { role: "status" });
  const check = () => checkValue(context, topic, value.value, problems, fields);
  const correct = async () => {
    await check();
    const isSame = value.value === original;
    const what = `the record ${letter.source}${isSame ? "" : " with the corrected value"}`;
    context.send({ place: letter.place, ...(isSame ? {} : { value: value.value }) }, what);
  };
  work.append(
    side(
      "Value",
      value,
      problems,
      element(
        "div",
        { class: "actions" },
        contract && button("Check against the contract", check),
        mayCorrect && button("Re-drive with this value", correct, { class: "primary" }),
      ),
      letter.bytes > MOST_BYTES && element("p", { class: "quiet" }, TOO_LARGE),
    ),
    side(topic ? `Contract of ${topic}` : "Contract", contractOf(fields)),
    side(`Headers of dead letter ${letter.place}`, headersOf(letter)),
  );
  if (contract && letter.value !== null) check();
}

const side = (heading, ...content) => element("div", {}, element("h4", {}, heading), content);

function contractField([field, kind]) {
  const name = element("code", {}, field || "value");
  return element("div", { "data-field": field }, element("dt", {}, name), element("dd", {}, kind));
}

function contractOf(fields) {
  if (!fields.length) return element("p", { class: "quiet" }, "The contract is unknown.");
  return element("dl", { class: "contract" }, fields);
}

function headersOf(letter) {
  const own = letter.headers.map(({ name, value }) => [name, value]);
  const shown = [...Object.entries(letter.sluice_headers), ...own].map(([name, text]) => [
    element("dt", {}, name),
    element("dd", {}, text === null ? element("i", {}, "null") : element("code", {}, text)),
  ]);
  return element("dl", {}, shown);
}

// Show the problems that the contract finds in the value, and mark the wrong fields.
async function checkValue({ path }, topic, value, problems, fields) {
  let answer;
  try {
    answer = await post(`${path}/check`, { topic, value });
  } catch (error) {
    answer = { problems: [{ path: "", detail: error.message }], has_contract: true };
  }
  problems.replaceChildren(...verdict(answer));
  const wrong = new Set(
    answer.problems.map((problem) => problem.path.replaceAll(/\[\d+\]/g, "[]")),
  );
  for (const row of fields) row.classList.toggle("wrong", wrong.has(row.dataset.field));
}

function pretty(text) {
  if (text === null) return "null";
  try {
    // Formatting changes the digits of long numbers, so only texts without such numbers are
    // formatted.
    return /\d{16}|\d\.\d*0\b/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function verdict({ problems, has_contract: isKnown }) {
  if (!isKnown)
    return [element("p", { class: "quiet" }, "The contract is unknown, so nothing is checked.")];
  if (!problems.length) return [badge("the contract accepts this value", "success")];
  const items = problems.map(({ path, detail }) =>
    element("li", {}, path && [element("code", {}, path), ": "], detail),
  );
  return [element("ul", { class: "problems" }, items)];
}

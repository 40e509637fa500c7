// A pipeline's dead letters: by reason, each with its place, bytes, headers and error; and the button that re-drives.

import { get, part, post, query } from "./api.js";
import { badge, button, card, confirm, element, link, report } from "./dom.js";
import { bytes, number, time } from "./format.js";

export async function deadLetters([name], search, { refresh }) {
  const given = Object.fromEntries([...search].filter(([, value]) => value !== ""));
  const path = `/pipelines/${part(name)}/dead_letters`;
  const since = given.since === "all" ? undefined : given.since || new Date(Date.now() - 86_400_000).toISOString();
  const [answer, all] = await Promise.all([get(path, { reason: given.reason, partition: given.partition, since, limit: 100 }), get("/overview")]);
  const mayEdit = all.find(({ pipeline }) => pipeline === name)?.may_edit;
  const hash = `#/pipelines/${part(name)}/dead-letters`;
  const send = (chosen, what) => redrive(name, path, { ...chosen, ...(since ? { since } : {}) }, what, refresh);
  return {
    title: `Dead letters of ${name}`,
    affects: name,
    live: Object.keys(given).length === 0,
    content: [
      element("div", { class: "title" }, element("h1", {}, `Dead letters of ${name}`), link(`#/pipelines/${part(name)}`, `Pipeline ${name}`)),
      element("div", { role: "status", id: "done" }, ""),
      choices(hash, given, answer),
      mayEdit && given.reason && element("div", { class: "actions" },
        button(`Re-drive all ${given.reason}`, () => send({ reason: given.reason, ...(given.partition ? { partition: Number(given.partition) } : {}) }, `all dead letters with the reason ${given.reason}`), { class: "primary" })),
      answer.dead_letters.length ? answer.dead_letters.map((letter) => letterCard(letter, mayEdit, send))
        : card("None", element("p", {}, given.since === "all" ? "There are no dead letters." : ["There were none in this time. ", link(`${hash}${query({ ...given, since: "all" })}`, "Show all")])),
    ],
  };
}

function choices(hash, given, answer) {
  const total = Object.values(answer.reasons).reduce((sum, count) => sum + count, 0);
  const { reason: _, ...rest } = given;
  return element("nav", { class: "choices", "aria-label": "Reasons" },
    element("a", { href: hash + query(rest), class: "choice", "aria-current": given.reason ? null : "true" }, "all ", !given.reason && element("b", {}, number(total))),
    Object.entries(answer.reasons).map(([reason, count]) =>
      element("a", { href: hash + query({ ...rest, reason }), class: "choice", "aria-current": given.reason === reason ? "true" : null }, `${reason} `, element("b", {}, number(count)))),
    element("a", { href: hash + query({ ...given, since: given.since === "all" ? "" : "all" }), class: "choice" }, given.since === "all" ? "only 24 hours" : "all times"),
    !answer.complete && badge("the search took too long: there are more", "behind"));
}

function letterCard(letter, mayEdit, send) {
  const headers = [...Object.entries(letter.sluice_headers), ...letter.headers.map(({ name, value }) => [name, value])];
  return element("article", { class: "card letter" },
    element("div", { class: "title" },
      element("h2", {}, badge(letter.reason, "failed"), " ", letter.source || letter.step || letter.place),
      letter.redriven_at ? element("span", {}, badge("re-driven", "success"), " ", time(letter.redriven_at))
        : mayEdit && (letter.not_redrivable ? badge(letter.not_redrivable) : button("Re-drive", () => send({ place: letter.place }, `the record ${letter.source}`)))),
    element("p", { class: "error" }, letter.detail),
    letter.step && element("p", {}, letter.step),
    letter.history.length > 0 && element("p", {}, badge(`failed ${letter.history.length + 1} times`, "behind"), " before: ", letter.history.map((failure) => `${failure.reason}: ${failure.detail} (${failure.at ?? ""})`).join("; ")),
    element("dl", {},
      element("dt", {}, "Written"), element("dd", {}, time(letter.at)),
      element("dt", {}, "Key"), element("dd", {}, letter.key === null ? element("i", {}, "null") : element("code", {}, letter.key)),
      element("dt", {}, "Value"), element("dd", {}, letter.value === null ? element("i", {}, "null") : element("pre", { tabindex: 0 }, letter.value), element("small", {}, bytes(letter.bytes)))),
    element("details", {}, element("summary", {}, `Headers of ${letter.place}`),
      element("dl", {}, headers.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value === null ? element("i", {}, "null") : element("code", {}, value))]))));
}

async function redrive(name, path, chosen, what, refresh) {
  const text = `Each original record is written to its topic again, once. The next run of ${name} reads it.`;
  if (!(await confirm(`Re-drive ${what}?`, text, "Re-drive"))) return;
  await report(refresh, async () => {
    const { since, ...rest } = chosen;
    const done = await post(`${path}/redrive`, rest.place ? rest : chosen);
    const skipped = Object.entries(done.skipped).map(([why, count]) => `${number(count)} left: ${why}`);
    return [`${number(done.redriven)} re-driven. `, skipped.join("; "), done.more && " There are more: re-drive again."].filter(Boolean);
  });
}

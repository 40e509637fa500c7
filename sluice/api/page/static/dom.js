// Makes elements. Text goes in as text, never as markup, because anybody may have written the
// keys, values and errors.

export const byId = (id) => document.getElementById(id);

// element("a", { href: "#/", class: "name" }, "text", node): attributes with the value null or
// false are left out.
export function element(tag, attributes = {}, ...content) {
  return filled(document.createElement(tag), attributes, content);
}

export function svg(tag, attributes = {}, ...content) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);
}

function filled(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (isAbsent(value)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const parts = content.flat(3).filter((part) => !isAbsent(part));
  node.append(...parts.map((part) => (part instanceof Node ? part : String(part))));
  return node;
}

const isAbsent = (part) => part === null || part === undefined || part === false;

export const link = (href, ...content) => element("a", { href }, ...content);

// A link to a page of Airflow, which opens in the whole window and not in this frame.
export const airflowLink = (path, ...content) =>
  element("a", { href: path, target: "_top" }, ...content);

export const badge = (text, kind = "") => element("span", { class: `badge ${kind}` }, text);

// A text that may be broken after each underscore.
export const breakable = (text) => text.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]);

export function button(text, action, attributes = {}) {
  return element("button", { type: "button", onclick: action, ...attributes }, text);
}

export function card(title, ...content) {
  return element("section", { class: "card" }, element("h2", {}, title), ...content);
}

const FEW = 4; // columns, which are still legible beside each other on a phone

// A table. If it has more than a few columns, its rows become cards on narrow screens. `columns`:
// { title, cell: (row) => content, number, sort, wide }. A `wide` cell is as wide as its card, and
// has its title above it.
export function table(columns, rows, { empty = "Nothing yet.", ...options } = {}) {
  if (!rows.length) return element("p", { class: "quiet" }, empty);
  return groupedTable(columns, [{ rows }], options);
}

// A table with rows in groups, which share the columns. `groups`: [{ title, rows }].
export function groupedTable(columns, groups, { label, sorting = null }) {
  const head = columns.map((column) => heading(column, sorting));
  const bodies = groups.map(({ title, rows }) => {
    const lines = rows.map((row) => line(columns, row));
    return element("tbody", {}, title && groupHeading(columns, title), lines);
  });
  const kind = columns.length <= FEW ? "few" : null;
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", { class: kind }, element("thead", {}, element("tr", {}, head)), bodies),
  );
}

function groupHeading(columns, title) {
  const attributes = { scope: "rowgroup", colspan: columns.length };
  return element("tr", { class: "group" }, element("th", attributes, element("h2", {}, title)));
}

function classOf({ number, wide }) {
  if (number) return "number";
  return wide ? "wide" : null;
}

function heading(column, sorting) {
  const attributes = { scope: "col", class: classOf(column) };
  if (!sorting || !column.sort) return element("th", attributes, column.title);
  let text = column.title;
  if (sorting.by === column.title) {
    attributes["aria-sort"] = sorting.down ? "descending" : "ascending";
    text += sorting.down ? " ↓" : " ↑";
  }
  const choose = () => sorting.choose(column);
  return element("th", attributes, button(text, choose, { class: "sort" }));
}

function line(columns, row) {
  const cells = columns.map((column, index) => {
    const attributes = {
      scope: index ? null : "row",
      class: classOf(column),
      "data-label": column.title,
    };
    return element(index ? "td" : "th", attributes, element("div", {}, column.cell(row)));
  });
  return element("tr", {}, cells);
}

// A list of links, one of which is marked as chosen. `choices`: [{ href, text, isChosen }].
export function choices(label, all, ...more) {
  const links = all.map(({ href, text, isChosen }) =>
    element("a", { class: "choice", href, "aria-current": isChosen ? "true" : null }, text),
  );
  return element("nav", { class: "choices", "aria-label": label }, links, more);
}

// Calls `act`, refreshes the page, and shows the returned message, or the error, in the element
// `done`. If `act` returns no message, it has done nothing, and the page stays as it is.
export async function report(refresh, act) {
  let message;
  let failed = false;
  try {
    message = await act();
    if (!message) return;
  } catch (error) {
    message = [error.message];
    failed = true;
  }
  await refresh();
  const done = document.getElementById("done");
  done?.replaceChildren(...message);
  done?.classList.toggle("trouble", failed);
}

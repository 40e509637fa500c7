// Makes elements. Text goes in as text, never as markup, because anybody may have written the keys, values and errors.

export const byId = (id) => document.getElementById(id);

// element("a", { href: "#/", class: "name" }, "text", node): attributes with the value null or false are left out.
export function element(tag, attributes = {}, ...content) {
  return filled(document.createElement(tag), attributes, content);
}

export function svg(tag, attributes = {}, ...content) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);
}

function filled(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const parts = content
    .flat(3)
    .filter((part) => part !== null && part !== undefined && part !== false);
  node.append(...parts.map((part) => (part instanceof Node ? part : String(part))));
  return node;
}

export const link = (href, ...content) => element("a", { href }, ...content);

// A link to a page of Airflow, which opens in the whole window and not in this frame.
export const airflowLink = (path, ...content) =>
  element("a", { href: path, target: "_top" }, ...content);

export const badge = (text, kind = "") => element("span", { class: `badge ${kind}` }, text);

export function button(text, action, attributes = {}) {
  return element("button", { type: "button", onclick: action, ...attributes }, text);
}

export function card(title, ...content) {
  return element("section", { class: "card" }, element("h2", {}, title), ...content);
}

// A table whose rows become cards on narrow screens. `columns`: { title, cell: (row) => content, number, sort }.
export function table(columns, rows, { label, empty = "Nothing yet.", sorting = null } = {}) {
  if (!rows.length) return element("p", { class: "quiet" }, empty);
  const head = columns.map((column) => {
    const sorted = sorting && sorting.by === column.title;
    const content =
      sorting && column.sort
        ? button(
            column.title + (sorted ? (sorting.down ? " ↓" : " ↑") : ""),
            () => sorting.choose(column),
            { class: "sort" },
          )
        : column.title;
    const order = sorted ? (sorting.down ? "descending" : "ascending") : null;
    return element(
      "th",
      { scope: "col", class: column.number ? "number" : null, "aria-sort": order },
      content,
    );
  });
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      columns.map((column, index) =>
        element(
          index ? "td" : "th",
          {
            scope: index ? null : "row",
            class: column.number ? "number" : null,
            "data-label": column.title,
          },
          element("div", {}, column.cell(row)),
        ),
      ),
    ),
  );
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)),
  );
}

// Does something, refreshes the page, and shows the message that was returned, or the error, in the element `done`.
// Without a message, because nothing was done, it leaves the page as it is.
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

// A dialog that asks before something changes. Resolves to what `send` returns for the texts of its fields by name, or to
// null if it is cancelled. A field has a name, a label and a note. If the server rejects a text, the dialog stays open.
export function confirm(title, text, action, { fields = [], send = async () => true } = {}) {
  return new Promise((resolve, reject) => {
    const inputs = fields.map(({ name, label, note }) => [
      name,
      element("input", { name, placeholder: note, "aria-describedby": "dialog-error" }),
      label,
    ]);
    const error = element("p", {
      id: "dialog-error",
      role: "alert",
      class: "trouble",
      hidden: true,
    });
    const given = () =>
      Object.fromEntries(inputs.map(([name, input]) => [name, input.value.trim()]));
    const close = (end, value) => {
      dialog.remove();
      end(value);
    };
    const accept = async () => {
      try {
        close(resolve, await send(given()));
      } catch (problem) {
        if (![400, 422].includes(problem.status) || !inputs.length) return close(reject, problem);
        error.replaceChildren(problem.message);
        error.hidden = false;
        for (const [name, input] of inputs)
          input.setAttribute("aria-invalid", problem.message.startsWith(`${name} `));
        (inputs.find(([, input]) => input.getAttribute("aria-invalid") === "true") ??
          inputs[0])[1].focus();
      }
    };
    const dialog = element(
      "dialog",
      { "aria-labelledby": "dialog-title", onclose: () => close(resolve, null) },
      element(
        "form",
        {
          method: "dialog",
          onsubmit: (event) => {
            event.preventDefault();
            accept();
          },
        },
        element("h2", { id: "dialog-title" }, title),
        element("p", {}, text),
        inputs.map(([, input, label]) => element("label", { class: "field" }, label, " ", input)),
        error,
        element(
          "div",
          { class: "actions" },
          button("Cancel", () => dialog.close()),
          element("button", { type: "submit", class: "primary" }, action),
        ),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

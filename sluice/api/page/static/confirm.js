// A dialog that asks before something changes.

import { button, element } from "./dom.js";

// Calls `send` with the fields' texts by name, and resolves to its result, or to null if the dialog
// is cancelled. A field has a name, a label, a note, and optionally `offers`: [{ label, text }] to
// choose from. If the server rejects a text, the dialog stays open. `text` may be nodes.
export function confirm(title, text, action, { fields = [], send = async () => true } = {}) {
  return new Promise((resolve, reject) => {
    const inputs = fields.map(inputOf);
    const error = element("p", {
      id: "dialog-error",
      role: "alert",
      class: "trouble",
      hidden: true,
    });
    const close = (end, value) => {
      dialog.remove();
      end(value);
    };
    const accept = async (event) => {
      event.preventDefault();
      try {
        close(resolve, await send(textsOf(inputs)));
      } catch (problem) {
        if (![400, 422].includes(problem.status) || !inputs.length) return close(reject, problem);
        error.replaceChildren(problem.message);
        error.hidden = false;
        mark(inputs, problem.message);
      }
    };
    const dialog = element(
      "dialog",
      { "aria-labelledby": "dialog-title", onclose: () => close(resolve, null) },
      element(
        "form",
        { method: "dialog", onsubmit: accept },
        element("h2", { id: "dialog-title" }, title),
        element(typeof text === "string" ? "p" : "div", {}, text),
        inputs.map(fieldOf),
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

function inputOf({ name, label, note, offers = [] }) {
  const attributes = { name, placeholder: note, "aria-describedby": "dialog-error" };
  return { name, label, offers, input: element("input", attributes) };
}

function fieldOf({ label, offers, input }) {
  const choose = (text) => {
    input.value = text;
    input.focus();
  };
  const buttons = offers.map(({ label: offer, text }) => button(offer, () => choose(text)));
  return [
    element("label", { class: "field" }, label, " ", input),
    buttons.length > 0 && element("div", { class: "offers" }, buttons),
  ];
}

function textsOf(inputs) {
  return Object.fromEntries(inputs.map(({ name, input }) => [name, input.value.trim()]));
}

// Mark the field that the message names, and put the pointer into it.
function mark(inputs, message) {
  let wrong = null;
  for (const { name, input } of inputs) {
    const isNamed = message.startsWith(`${name} `);
    input.setAttribute("aria-invalid", isNamed);
    if (isNamed) wrong ??= input;
  }
  (wrong ?? inputs[0].input).focus();
}

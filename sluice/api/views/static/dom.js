// Creates elements and formats numbers. Text is never inserted as markup, because keys and values can contain anything.

export const byId = (id) => document.getElementById(id);

export function element(tag, className = "", ...content) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...content.map((part) => (part instanceof Node ? part : String(part))));
  return node;
}

export function titled(node, title) {
  node.title = title;
  return node;
}

export const row = (...cells) => element("tr", "", ...cells);
export const cell = (content, className = "") => element("td", className, content);

const format = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "–" : format.format(value));

export function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// An age that is updated every second until the next response.
export function running(snapshot, suffix = "") {
  const node = element("span", "", age(snapshot.age_seconds) + suffix);
  node.dataset.since = Date.now() - snapshot.age_seconds * 1000;
  node.dataset.suffix = suffix;
  return titled(node, new Date(snapshot.published_at).toLocaleString());
}

setInterval(() => {
  for (const node of document.querySelectorAll("[data-since]")) {
    node.textContent = age((Date.now() - node.dataset.since) / 1000) + node.dataset.suffix;
  }
}, 1000);

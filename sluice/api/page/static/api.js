// Requests to the REST API. Everything the page shows comes from here.

const BASE = document.body.dataset.base;

export class Problem extends Error {
  constructor(status, detail, nextStep) {
    super([detail, nextStep].filter(Boolean).join(" "));
    this.status = status;
  }
}

export const address = (path) => `${BASE}/v1${path}`;
export const part = encodeURIComponent;

export function query(parameters) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

const JSON_ONLY = { headers: { Accept: "application/json" } };
export const get = (path, parameters = {}) => send(address(path) + query(parameters), JSON_ONLY);
// Like `get`, but numbers that a double would change, such as 54.00 and 2^63, keep their digits.
export const getExact = (path, parameters = {}) =>
  send(address(path) + query(parameters), JSON_ONLY, exact);

export const post = (path, body) =>
  send(address(path), {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

async function send(url, options, read = JSON.parse) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Problem(0, "Airflow's API server does not answer.");
  }
  if (response.ok) return read(await response.text());
  const problem = await response
    .json()
    .catch(() => ({ detail: `The server answered ${response.status}.` }));
  throw new Problem(response.status, problem.detail, problem.nextStep);
}

function exact(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && !sameDigits(value, context.source)
      ? new Exact(context.source)
      : value,
  );
}

const sameDigits = (value, source) => String(value) === source;

class Exact {
  constructor(source) {
    this.source = source;
  }
  toString() {
    return this.source;
  }
  valueOf() {
    return Number(this.source);
  }
  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : Number(this.source);
  }
}

// Calls `changed` with the names of pipelines that published, began or ended a run, or failed.
export function listen(changed, trouble) {
  const events = new EventSource(address("/events"));
  events.addEventListener("pipelines", (event) => changed(JSON.parse(event.data)));
  events.addEventListener("error", () => trouble(true));
  events.addEventListener("open", () => trouble(false));
  addEventListener("pagehide", () => events.close());
}

export const curl = (path, parameters = {}) =>
  `curl -H "Authorization: Bearer $TOKEN" '${new URL(address(path) + query(parameters), location.href)}'`.replaceAll(
    "\n",
    "%0A",
  );

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
// The address of a page or route of Airflow, or of a custom route.
export const airflow = (path) => BASE.replace(/\/sluice$/, "") + path;

export function query(parameters) {
  const isGiven = (value) => value !== null && value !== undefined && value !== "";
  const given = Object.entries(parameters).filter(([, value]) => isGiven(value));
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

// The answer, or an empty list if it is 404.
export const optional = (answer) =>
  answer.catch((error) => (error.status === 404 ? [] : Promise.reject(error)));

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
  return JSON.parse(text, (_, value, context) => {
    const isChanged = typeof value === "number" && context && String(value) !== context.source;
    return isChanged ? new Exact(context.source) : value;
  });
}

// A number that keeps its digits; see `getExact`.
export const isExact = (data) => data instanceof Exact;
export const isNumber = (data) => typeof data === "number" || isExact(data);

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

export function curl(path, parameters = {}) {
  const url = new URL(address(path) + query(parameters), location.href).href;
  return `curl -H "Authorization: Bearer $TOKEN" '${url}'`.replaceAll("\n", "%0A");
}

import "./theme.js";
import { byId, cell, element, number, row, running, titled } from "./dom.js";

const BASE = document.body.dataset.base;
const REFRESH_MS = 5000;
const BARS = 12;
const RUNS = 8;

class Problem extends Error {}

async function ask(path) {
  const answer = await fetch(BASE + path, { headers: { Accept: "application/json" } });
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({ detail: `The server answered ${answer.status}.` }));
  throw Object.assign(new Problem([problem.detail, problem.nextStep].filter(Boolean).join(" ")), { status: answer.status });
}

async function refresh() {
  try {
    const [stores, pipelines] = await Promise.all([ask("/v1/stores?entries=true"), ask("/v1/pipelines")]);
    byId("empty").hidden = stores.length > 0;
    byId("content").hidden = stores.length === 0;
    showHealth(stores, pipelines);
    showFailures(pipelines);
    showStores(stores, new Set(failed(pipelines).map((one) => one.pipeline)));
    const ran = pipelines.filter((one) => one.jobs.length);
    const snapshots = await Promise.all(
      ran.map((one) => ask(`/v1/pipelines/${encodeURIComponent(one.pipeline)}/snapshots?limit=${RUNS}`)),
    );
    showFigures(stores, pipelines);
    showSnapshots(snapshots.flat());
    showTopologies(ran);
    await showOrders(stores);
    byId("trouble").hidden = true;
  } catch (error) {
    showTrouble(error);
  }
}

function showTrouble(error) {
  const message = error instanceof Problem ? error.message : "Airflow's API server does not answer.";
  byId("trouble").textContent = `${message} The figures below may be out of date.`;
  byId("trouble").hidden = false;
}

function workersOf(stores) {
  const workers = new Map();
  for (const store of stores) {
    for (const worker of store.workers) workers.set(`${store.pipeline}/${store.job}/${worker.number}`, worker);
  }
  return [...workers.values()];
}

const failed = (pipelines) => pipelines.filter((one) => one.status !== "ok");

function showHealth(stores, pipelines) {
  const workers = workersOf(stores);
  const lost = workers.filter((worker) => worker.status !== "ok").length;
  const bad = failed(pipelines);
  const wrong = [
    bad.length > 1 ? `${bad.length} pipelines failed` : bad.map((one) => `${one.pipeline} ${one.status}`)[0],
    lost ? `${lost} of ${workers.length} workers unavailable` : undefined,
  ].filter(Boolean);
  const health = byId("health");
  health.textContent = wrong.join(", ") || (workers.length ? "All workers answer" : "Nothing published");
  health.className = `pill ${wrong.length ? "bad" : workers.length ? "good" : ""}`;
}

function showFailures(pipelines) {
  const shown = failed(pipelines).flatMap((one) => one.failures.map((failure) => failureLine(one, failure)));
  byId("failures").replaceChildren(...shown);
  byId("failures").hidden = !shown.length;
}

function failureLine(pipeline, failure) {
  const what = pipeline.status === "broken" && !failure.job ? "cannot be loaded" : "failed";
  return element("li", "",
    element("b", "", [pipeline.pipeline, failure.job].filter(Boolean).join(" / ")), ` ${what}, `,
    running({ ...failure, published_at: failure.at }, " ago"), `: ${failure.title}. ${failure.detail}`,
    failure.run ? titled(element("small", "", ` run ${failure.run}`), failure.run) : "");
}

function showFigures(stores, pipelines) {
  const workers = workersOf(stores);
  const snapshots = stores.map((store) => store.snapshot).filter(Boolean);
  const newest = snapshots.sort((one, other) => one.age_seconds - other.age_seconds)[0];
  byId("stores-figure").textContent = number(stores.length);
  byId("stores-note").textContent = `in ${pipelines.length} ${pipelines.length === 1 ? "pipeline" : "pipelines"}`;
  byId("entries-figure").textContent = number(stores.reduce((sum, store) => sum + (store.entries ?? 0), 0));
  byId("workers-figure").textContent = `${workers.filter((one) => one.status === "ok").length} / ${workers.length}`;
  byId("workers-note").textContent = "can be read";
  byId("snapshot-figure").replaceChildren(newest ? running(newest, " ago") : "–");
  byId("snapshot-note").textContent = newest ? `snapshot ${newest.id}` : "before the first run";
}

function showStores(stores, red) {
  byId("stores").replaceChildren(...stores.map((store) => row(
    cell(store.store, "name"),
    cell(store.pipeline, red.has(store.pipeline) ? "some" : ""),
    cell(titled(element("span", "badge", kind(store)), store.value)),
    cell(element("code", "", store.key)),
    cell(number(store.entries), "number"),
    cell(workerList(store.workers)),
    cell(store.snapshot ? element("code", "", store.snapshot.id) : "–"),
    cell(store.snapshot ? running(store.snapshot) : "–", "number"),
  )));
}

function kind(store) {
  if (store.window_ms === null) return store.kind;
  return `${store.window_ms / 1000} s windows`;
}

function workerList(workers) {
  return element("span", "workers", ...workers.map((worker) =>
    titled(element("span", `worker ${worker.status}`, worker.number), `worker ${worker.number}: ${worker.reason || "ok"}`)));
}

// The counts of a snapshot are `read`, `applied`, `late/STORE`, `failed/STEP`, `dead_letter/REASON` and so on.
const COUNTED = { dead_letter: (reason) => reason, late: (store) => `late for ${store}`, failed: (step) => `failed in ${step}` };

function total(counts, name) {
  return Object.entries(counts)
    .filter(([key]) => key === name || key.startsWith(`${name}/`))
    .reduce((sum, [, count]) => sum + count, 0);
}

function showSnapshots(snapshots) {
  const newest = snapshots.sort((one, other) => one.snapshot.age_seconds - other.snapshot.age_seconds).slice(0, RUNS);
  byId("snapshots").replaceChildren(...newest.map(({ job, snapshot, counts }) => row(
    cell(titled(element("code", "", snapshot.id), job)),
    cell(running(snapshot, " ago")),
    ...["read", "applied"].map((name) => cell(number(total(counts, name)), "number")),
    ...["late", "dead_letter"].map((name) => cell(number(total(counts, name)), total(counts, name) ? "number some" : "number")),
  )));
  showReasons(newest);
}

function showReasons(snapshots) {
  const reasons = new Map();
  for (const [key, count] of snapshots.flatMap(({ counts }) => Object.entries(counts))) {
    const [what, reason] = key.split(/\/(.*)/s);
    if (!Object.hasOwn(COUNTED, what)) continue;
    const name = COUNTED[what](reason);
    reasons.set(name, (reasons.get(name) ?? 0) + count);
  }
  const sorted = [...reasons].filter(([, count]) => count).sort((one, other) => other[1] - one[1]);
  byId("reasons").replaceChildren(...sorted.map(([name, count]) => element("span", "badge", `${name}: ${number(count)}`)));
}

async function showOrders(stores) {
  const shown = stores.some((store) => store.pipeline === "orders" && store.store === "general_orders_count" && store.snapshot);
  byId("orders").hidden = !shown;
  if (!shown) return;
  const locations = new Map();
  for (const { locationId, orderCount, orderType } of await ask("/../v1/orders/count")) {
    const known = locations.get(locationId) ?? { locationId, GENERAL: 0, RESTAURANT: 0 };
    locations.set(locationId, { ...known, [orderType]: orderCount });
  }
  showBars([...locations.values()].map((one) => ({ ...one, sum: one.GENERAL + one.RESTAURANT })));
}

function showBars(locations) {
  const sum = (name) => locations.reduce((all, one) => all + one[name], 0);
  const top = locations.sort((one, other) => other.sum - one.sum).slice(0, BARS);
  byId("chart").replaceChildren(...top.map((one) => bar(one, top[0].sum)));
  byId("chart-note").textContent =
    `${number(sum("sum"))} orders at ${number(locations.length)} locations` +
    (locations.length > BARS ? `; the ${BARS} busiest are shown.` : ".");
  byId("general").textContent = `General ${number(sum("GENERAL"))}`;
  byId("restaurant").textContent = `Restaurant ${number(sum("RESTAURANT"))}`;
}

function bar(location, most) {
  const part = (name, count) => {
    const made = element("span", name);
    made.style.width = `${(100 * count) / most}%`;
    return made;
  };
  const track = element("div", "track", part("general", location.GENERAL), part("restaurant", location.RESTAURANT));
  const made = element("div", "bar", element("span", "", location.locationId), track,
    element("span", "number", number(location.sum)));
  return titled(made, `${location.locationId}: ${number(location.GENERAL)} general, ${number(location.RESTAURANT)} restaurant`);
}

// A topology changes only with its job's generation, so existing drawings are kept.
function showTopologies(pipelines) {
  const key = JSON.stringify(pipelines.map((one) => [one.pipeline, one.jobs.map((job) => job.generation)]));
  if (byId("topologies").dataset.key === key) return;
  byId("topologies").dataset.key = key;
  byId("topologies").replaceChildren(...pipelines.map((one) => topology(one.pipeline)));
}

function topology(pipeline) {
  const address = `${BASE}/v1/pipelines/${encodeURIComponent(pipeline)}/topology`;
  const picture = element("img");
  picture.alt = `Topology of ${pipeline}`;
  const drawing = element("div", "drawing", picture);
  picture.addEventListener("error", async () => {
    const answer = await fetch(`${address}?format=text`);
    drawing.replaceChildren(element("pre", "", answer.ok ? await answer.text() : "There is no drawing."));
  });
  picture.addEventListener("click", () => drawing.classList.toggle("large"));
  picture.src = `${address}?format=svg`;
  return element("section", "card", element("div", "title", element("h2", "", `Topology of ${pipeline}`)), drawing);
}

async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, REFRESH_MS);
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
run();

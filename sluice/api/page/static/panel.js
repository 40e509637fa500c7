// A panel that a pipeline brings along: the module PIPELINE_panel.js beside its file.

import { address, airflow, part } from "./api.js";
import { card, element, table } from "./dom.js";
import { duration, number, time } from "./format.js";

export async function panel(name) {
  const url = address(`/../panels/${part(name)}.js`).replace("/v1/../", "/");
  const reply = await fetch(url);
  if (reply.status !== 200) return null;
  try {
    const module = await import(url);
    const chart = await pointsCharts();
    return await module.default({ get: read, card, chart, element, number, duration, time, table });
  } catch (error) {
    const text = `The panel of ${name} failed: ${error.message}`;
    return card("Panel", element("p", { class: "quiet" }, text));
  }
}

const read = (path) => fetch(airflow(path)).then((data) => data.json());

async function pointsCharts() {
  const [{ pointsChart }, { uPlot }] = await Promise.all([
    import("./charts.js"),
    import("./library.js"),
  ]);
  const library = await uPlot();
  return (title, series, options) => pointsChart(library, title, series, options);
}

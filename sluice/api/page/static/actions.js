// What a person can do with a pipeline, each with a dialog that says what it will do.

import { airflow, part, post } from "./api.js";
import { confirm } from "./confirm.js";
import { airflowLink, button, element, link, report } from "./dom.js";

const DAY_MS = 86_400_000;

// Times at which a replay often begins. A server takes times without a zone for UTC.
function startsOfDays() {
  const start = (daysAgo) => new Date(Date.now() - daysAgo * DAY_MS).toISOString().slice(0, 10);
  return [
    { label: "Today, 00:00 UTC", text: `${start(0)}T00:00:00` },
    { label: "Yesterday, 00:00 UTC", text: `${start(1)}T00:00:00` },
    { label: "A week ago", text: `${start(7)}T00:00:00` },
    { label: "The beginning", text: "beginning" },
  ];
}

// Action → the text of its button, and the dialog's title, explanation and fields. When the dialog
// opens, `offers` makes texts to choose from.
const ACTIONS = {
  run: {
    button: "Run now",
    title: "Read all unread records",
    text: "The pipeline's DAG is triggered. Without unread records the run changes nothing.",
  },
  replay: {
    button: "Replay…",
    title: "Replay into a new generation",
    text:
      "The state is built again from the topics, in a generation beside the current one. " +
      "Queries read the current one until you promote the new one. To replay a part, enter a " +
      "time such as 2026-11-21T08:00:00 (UTC) or offsets such as orders/0/1200,orders/1/980.",
    fields: [
      {
        name: "from",
        label: "From",
        note: "where the current generation began",
        offers: startsOfDays,
      },
      { name: "until", label: "Until", note: "the newest snapshot" },
    ],
  },
  promote: {
    button: "Promote…",
    title: "Make the new generation the current one",
    text:
      "A run first lets the new generation read what the current one has read since. Then all " +
      "queries read the new generation. The next replay removes the old one.",
  },
  change: {
    button: "Compute what has changed…",
    title: "Compute new and changed stores",
    text:
      "New and changed stores are computed from the topics, and the entries of removed stores " +
      "are deleted for good. All other stores keep their state, and queries of them go on. " +
      "Then the pipeline runs.",
  },
  roll_back: {
    button: "Roll back…",
    title: "Make the earlier generation current again",
    text:
      "The earlier generation is copied, reads what was published since, without output, and " +
      "becomes the current one. Put the earlier file of the pipeline in place first.",
  },
  drop: {
    button: "Drop…",
    title: "Remove the new generation",
    text: "The current generation stays as it is.",
  },
};
const PAUSE =
  "No run starts, whoever asks for it, and nothing counts as wrong. A run in progress ends when " +
  "it has read all records. Everybody sees the reason.";
const REASON = { name: "reason", label: "Reason", note: "why it does not run" };

const isRunning = (overview) => ["running", "queued"].includes(overview.last_run?.state);

// The button that asks whether to start a run with this action, and starts it.
export function actionButton(context, action, attributes = {}) {
  const isAgain = action === "run" && isRunning(context.overview);
  const text = isAgain ? "Run again after this run" : ACTIONS[action].button;
  return button(text, () => start(context, action), attributes);
}

// The actions in a pipeline's heading.
export function headingActions(context) {
  const { overview } = context;
  const dag = airflowLink(airflow(`/dags/${part(overview.pipeline)}`), "DAG");
  const actions = element("div", { class: "actions" }, dag);
  if (!overview.may_edit) return actions;
  const mustChange = overview.failures.some((failure) => failure.remedy === "change");
  const pauses = () => pauseOrResume(context);
  if (!overview.pause) actions.append(actionButton(context, "run", { class: "primary" }));
  actions.append(button(overview.pause ? "Resume" : "Pause…", pauses));
  if (mustChange) actions.append(actionButton(context, "change", { class: "primary" }));
  if (overview.snapshot) actions.append(actionButton(context, "replay"));
  return actions;
}

async function start({ name, overview, refresh }, action) {
  const { title, text } = ACTIONS[action];
  const fields = ACTIONS[action].fields?.map((field) => ({ ...field, offers: field.offers?.() }));
  const waits = isRunning(overview)
    ? " A run is in progress. The new run begins when it has ended."
    : "";
  const send = (texts) => {
    const points = Object.entries(texts).filter(([, point]) => point);
    return post(`/pipelines/${part(name)}/runs`, { action, ...Object.fromEntries(points) });
  };
  await report(refresh, async () => {
    const started = await confirm(`${title}: ${name}`, text + waits, title, { fields, send });
    if (!started) return null;
    const afterwards = action === "replay" ? whatNext(name) : "";
    return ["Run ", airflowLink(started.log, started.run), " is queued.", afterwards].flat();
  });
}

// What somebody does after a replay.
const whatNext = (name) => [
  " When it has ended, ",
  link(`#/pipelines/${part(name)}/shards`, "look at the new generation"),
  ", and promote or drop it.",
];

async function pauseOrResume({ name, overview, refresh }) {
  const path = `/pipelines/${part(name)}`;
  await report(refresh, async () => {
    if (overview.pause) {
      await post(`${path}/resume`, {});
      return ["The pipeline may run again."];
    }
    const send = (texts) => post(`${path}/pause`, texts);
    const paused = await confirm(`Pause ${name}`, PAUSE, "Pause", { fields: [REASON], send });
    return paused && ["The pipeline is paused."];
  });
}

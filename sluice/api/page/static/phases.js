// The phases of a batch, in the words of all views.

export const PHASES = {
  start: "planning a batch",
  state: "processing records",
  audit: "checking counts",
  output: "writing output",
};

// Loads the libraries in the folder vendor, which are classic scripts, when a view first needs them.

import { element } from "./dom.js";

const loading = new Map();

function library(file, name) {
  if (!loading.has(file)) {
    loading.set(
      file,
      new Promise((resolve, reject) => {
        const src = new URL(`./vendor/${file}`, import.meta.url).href;
        document.head.append(
          element("script", {
            src,
            onload: () => resolve(globalThis[name]),
            onerror: () => reject(new Error(`${file} cannot be loaded.`)),
          }),
        );
      }),
    );
  }
  return loading.get(file);
}

export const dagre = () => library("dagre.min.js", "dagre");
export const uPlot = () => library("uPlot.iife.min.js", "uPlot");

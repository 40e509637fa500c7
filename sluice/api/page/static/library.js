// Loads the libraries in the folder vendor, which are classic scripts, when a view first needs
// them.

import { element } from "./dom.js";

const loading = new Map();

function library(file, name) {
  if (!loading.has(file)) loading.set(file, load(file, name));
  return loading.get(file);
}

function load(file, name) {
  return new Promise((resolve, reject) => {
    const script = element("script", {
      src: new URL(`./vendor/${file}`, import.meta.url).href,
      onload: () => resolve(globalThis[name]),
      onerror: () => reject(new Error(`${file} cannot be loaded.`)),
    });
    document.head.append(script);
  });
}

export const dagre = () => library("dagre.min.js", "dagre");
export const uPlot = () => library("uPlot.iife.min.js", "uPlot");

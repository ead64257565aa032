// SPDX-License-Identifier: MIT
// Draws the pictures of a benchmark's JSON into SVG files. Needs the npm package linkedom:
//   npm install --prefix benchmarks/page
//   node benchmarks/page/draw.mjs RESULTS.json... OUT.svg [NAME]
// Several files are runs of ep_bench and of other libraries over tokens or over ranks, which make one picture.
import {readFileSync, writeFileSync} from "node:fs";
import {runInThisContext} from "node:vm";
import {parseHTML} from "linkedom";

const words = process.argv.slice(2);
const inputs = words.filter((name) => name.endsWith(".json"));
const [output, wanted] = words.filter((name) => !name.endsWith(".json"));
if (inputs.length === 0 || !output) {
  console.error("usage: draw.mjs RESULTS.json... OUT.svg [NAME]");
  process.exit(2);
}
globalThis.window = parseHTML("<html><body></body></html>");
globalThis.document = window.document;
for (const script of ["vendor/d3.min.js", "vendor/plot.umd.min.js", "results.js", "charts.js"])
  runInThisContext(readFileSync(new URL(script, import.meta.url), "utf8"), script);
const {results, charts} = runInThisContext("({results, charts})");

/** Returns what `read` does. If that fails, says what of and ends. */
function orEnd(what, read) {
  try {
    return read();
  } catch (problem) {
    console.error(`draw.mjs: ${what}: ${problem.message}`);
    process.exit(2);
  }
}
const given = inputs.map((input) =>
  orEnd(input, () => {
    const data = JSON.parse(readFileSync(input, "utf8"));
    if (!Array.isArray(data)) results.read(data); // So that of several files the one that is wrong is named.
    return data;
  }),
);
const pictures = orEnd(inputs, () => charts.draw(results.read(given.length > 1 ? given : given[0])));
const names = [...pictures.keys()];
if (wanted ? !pictures.has(wanted) : names.length !== 1) {
  console.error(`draw.mjs: ${inputs} have the pictures [${names}]; name one of them`);
  process.exit(2);
}
const picture = pictures.get(wanted ?? names[0]);
picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
const style = document.createElement("style");
style.textContent = charts.style;
picture.prepend(style);
writeFileSync(output, `${picture.outerHTML}\n`);

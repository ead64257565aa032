// SPDX-License-Identifier: MIT
// Draws the pictures of a benchmark's JSON into SVG files. Needs the npm package linkedom:
//   npm install --prefix benchmarks/page
//   node benchmarks/page/draw.mjs RESULTS.json OUT.svg [NAME]
import {readFileSync, writeFileSync} from "node:fs";
import {runInThisContext} from "node:vm";
import {parseHTML} from "linkedom";

const [input, output, wanted] = process.argv.slice(2);
if (!output) {
  console.error("usage: draw.mjs RESULTS.json OUT.svg [NAME]");
  process.exit(2);
}
globalThis.window = parseHTML("<html><body></body></html>");
globalThis.document = window.document;
for (const script of ["vendor/d3.min.js", "vendor/plot.umd.min.js", "results.js", "charts.js"])
  runInThisContext(readFileSync(new URL(script, import.meta.url), "utf8"), script);
const {results, charts} = runInThisContext("({results, charts})");

const pictures = charts.draw(results.read(JSON.parse(readFileSync(input, "utf8"))));
const names = [...pictures.keys()];
if (wanted ? !pictures.has(wanted) : names.length !== 1) {
  console.error(`draw.mjs: ${input} has the pictures [${names}]; name one of them`);
  process.exit(2);
}
const picture = pictures.get(wanted ?? names[0]);
picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
const style = document.createElement("style");
style.textContent = charts.style;
picture.prepend(style);
writeFileSync(output, `${picture.outerHTML}\n`);

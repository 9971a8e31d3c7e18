// Use over time, as stacked areas: what the extender remembers, and from then on what the watch brings.

import { broken, element, grey, plain } from "./draw.js";
import { fetched } from "./watch.js";

// Name, place of its legend, place in a sample, fill.
const SERIES = [
  ["used", 0, 1, () => plain(0)],
  ["used, but broken", 80, 5, broken],
  ["free, linked", 220, 2, () => plain(2)],
  ["free, not linked", 340, 3, () => plain(1)],
  ["not available", 480, 4, grey],
];
const WIDTH = 720;
const HEIGHT = 200;
const LEFT = 40;
const BOTTOM = 24;
const LEGEND = 22;
const MOST_SAMPLES = 1000;

const samples = [];
let pauseMs = 30000;

export async function readUse() {
  try {
    const { seconds, samples: remembered } = await (await fetched("use.json")).json();
    pauseMs = 1000 * seconds;
    samples.splice(0, samples.length, ...remembered);
  } catch {
    // The live numbers are shown all the same.
  }
}

/** Counts as in use.json: time, used, free, unlinked, other, broken. */
function useNow(nodes) {
  const counts = [Math.floor(Date.now() / 1000), 0, 0, 0, 0, 0];
  for (const { devices, used, usedBroken, free, largest } of nodes) {
    counts[1] += used - usedBroken;
    counts[2] += largest;
    counts[3] += free - largest;
    counts[4] += devices - used - free;
    counts[5] += usedBroken;
  }
  return counts;
}

/** `nodes` in numbers, as `countsOf` gives them. */
export function drawUse(nodes) {
  if (!nodes.length) return;
  const now = useNow(nodes);
  const last = samples[samples.length - 1];
  if (!last || 1000 * (now[0] - last[0]) > pauseMs) samples.push(now);
  samples.splice(0, Math.max(0, samples.length - MOST_SAMPLES));
  const shown = [...samples, now];
  const [start, end] = [shown[0][0], Math.max(now[0], shown[0][0] + 1)];
  const most = Math.max(1, ...shown.map((each) => each.slice(1).reduce((total, count) => total + count)));
  const x = (at) => LEFT + ((WIDTH - LEFT) * (at - start)) / (end - start);
  const y = (count) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 8) * count) / most;
  const root = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + LEGEND}`, role: "img", xmlns: "http://www.w3.org/2000/svg" });
  root.setAttribute("aria-label", `Devices now: ${SERIES.map(([name, , at]) => `${now[at]} ${name}`).join("; ")}`);
  const below = shown.map(() => 0);
  for (const [name, place, at, fill] of SERIES) {
    const lower = shown.map(([time], sample) => `${x(time)} ${y(below[sample])}`);
    shown.forEach((each, sample) => (below[sample] += each[at]));
    const upper = shown.map(([time], sample) => `${x(time)} ${y(below[sample])}`);
    root.append(element("path", { d: `M${upper.join("L")}L${lower.reverse().join("L")}Z`, fill: fill() }));
    root.append(element("rect", { x: LEFT + place, y: HEIGHT + 4, width: 12, height: 12, fill: fill() }));
    root.append(element("text", { x: LEFT + 16 + place, y: HEIGHT + 14 }, `${name}: ${now[at]}`));
  }
  root.append(element("text", { x: 0, y: y(most) + 10 }, `${most}`), element("text", { x: 0, y: y(0) }, "0"));
  root.append(element("text", { x: LEFT, y: HEIGHT - 8 }, clock(start)));
  root.append(element("text", { x: WIDTH, y: HEIGHT - 8, "text-anchor": "end" }, clock(end)));
  document.getElementById("use").replaceChildren(root);
}

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();

export function downloadUse() {
  const copy = document.querySelector("#use svg").cloneNode(true);
  copy.prepend(document.querySelector("#patterns defs").cloneNode(true));
  copy.setAttribute("font-family", "sans-serif");
  copy.setAttribute("font-size", "11");
  const blob = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "neuron-use.svg";
  link.click();
  URL.revokeObjectURL(link.href);
}

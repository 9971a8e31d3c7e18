// Which pods were evicted in the last hour to make room for others: a time line, and the same as a table.

import { secondsOf, when } from "./facts.js";
import { html, put, table } from "./html.js";
import { element } from "./paint.js";
import { fetched } from "./stream.js";

const WIDTH = 720;
const HEIGHT = 70;
const SIDE = 30;
const LINE = 48;
const TICKS = 4;
const MOST_IN_TABLE = 20;
const PAUSE_MS = 2000;
// A mark by its place: no cause is known by its colour alone.
const MARKS = { preemption: ["preempted", "M0 6L-6 -6H6Z"], move: ["moved", "M0 -7L7 0L0 7L-7 0Z"] };

let evictions = [];
let seconds = 3600;
let asking = false;

/** Ask for the evictions again, soon: when a pod has gone. `changed` is called when they are here. */
export function readRoom(changed, pause = PAUSE_MS) {
  if (asking) return;
  asking = true;
  setTimeout(async () => {
    asking = false;
    try {
      const found = await (await fetched("evictions.json")).json();
      seconds = found.seconds;
      evictions = found.evictions.map((each) => ({ ...each, at: secondsOf(each.at) }));
      changed();
    } catch {
      // The last ones stay.
    }
  }, pause);
}

export function drawRoom(section) {
  const now = Date.now() / 1000;
  const shown = evictions.filter((each) => now - each.at <= seconds);
  section.hidden = !shown.length;
  if (!shown.length) return;
  const x = (at) => WIDTH - SIDE - ((WIDTH - 2 * SIDE) * Math.max(0, now - at)) / seconds;
  const label = `${shown.length} pods evicted in the last hour to make room`;
  const root = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  root.append(element("path", { class: "links", d: `M${SIDE} ${LINE}H${WIDTH - SIDE}` }));
  for (let tick = 0; tick <= TICKS; tick++) {
    const at = now - (seconds * tick) / TICKS;
    root.append(element("path", { class: "links", d: `M${x(at)} ${LINE}v5` }));
    root.append(element("text", { x: x(at), y: LINE + 18, "text-anchor": "middle" }, when(at).slice(-8, -3)));
  }
  const beside = new Map(); // how many are drawn at one place: they stand on each other
  for (const each of shown) {
    const [, d] = MARKS[each.cause];
    const place = Math.round(x(each.at) / 10);
    const level = beside.get(place) || 0;
    beside.set(place, level + 1);
    const mark = element("path", { class: `eviction ${each.cause}`, d, transform: `translate(${x(each.at)} ${LINE - 9 - 11 * Math.min(level, 3)})` });
    root.append(element("g", {}, element("title", {}, sentence(each)), mark));
  }
  const rows = shown.slice(-MOST_IN_TABLE).reverse().map((each) => [
    when(each.at), legend(each.cause), each.pod, each.node, each.target, each.madeFor,
  ]);
  put(section.querySelector("div"), root);
  put(section.querySelector("details div"), table("Evicted pods, the latest first", ["Time", "What", "Pod", "Node", "To node", "To make room for"], rows));
}

function legend(cause) {
  const [word, d] = MARKS[cause];
  const mark = element("path", { class: `eviction ${cause}`, d });
  return html("span", {}, element("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true", class: "swatch" }, mark), word);
}

const sentence = (each) =>
  `${when(each.at)}: ${each.pod} ${MARKS[each.cause][0]} from ${each.node}${each.target ? ` to ${each.target}` : ""}, to make room for ${each.madeFor}`;

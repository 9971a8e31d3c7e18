// Colours in sequence: the first pod has the first colour, and no two have the same colour and mark.

import { byName } from "./facts.js";

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's first six, which people with any kind of colour vision can tell apart; red is kept for what is broken.
const COLOURS = ["#56b4e9", "#e69f00", "#cc79a7", "#0072b2", "#f0e442", "#009e73", "#9b8cff", "#a6761d", "#7fd1c7", "#b5b8c4"];
const DARK = new Set(["#0072b2", "#009e73", "#a6761d"]); // a text on them is white
const SHADES = ["", "#fff 55%", "#000 35%"]; // what a colour is mixed with
const PLAIN = COLOURS.length * SHADES.length;
// No slanted lines: those say that a device is idle.
const MARKS = ["", "M3 3H5V5H3Z", "M0 4H8", "M4 0V8", "M0 4H8M4 0V8", "M1 1H7V7H1Z", "M0 2H8M0 6H8", "M2 0V8M6 0V8", "M0 6L4 2L8 6"];
const PAINTS = PLAIN * MARKS.length;

const chosen = {}; // by what colours say, by key: the number of its paint

export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * Give each of these keys a paint that no other has. What colours say (`kind`) may change and change back: a key keeps its
 * paint. So does one that is gone, until others need its colour.
 */
export function assign(kind, keys) {
  const places = (chosen[kind] ??= new Map());
  const wanting = [...keys].filter((each) => !places.has(each)).sort(byName);
  if (places.size + wanting.length > PLAIN) for (const key of places.keys()) if (!keys.has(key)) places.delete(key);
  const taken = new Set(places.values());
  let next = 0;
  for (const key of wanting) {
    while (taken.has(next)) next++;
    places.set(key, next++);
  }
}

/** What belongs to `key` looks like: its colour, the fill of the marks over it (or none), and whether both are dark. */
export function paint(kind, key) {
  const number = chosen[kind]?.get(key) || 0;
  const base = COLOURS[number % COLOURS.length];
  const shade = Math.floor(number / COLOURS.length) % SHADES.length;
  const mark = Math.floor(number / PLAIN) % MARKS.length;
  const round = Math.floor(number / PAINTS);
  const dark = shade === 2 || (!shade && DARK.has(base));
  return { colour: shade ? `color-mix(in srgb, ${base}, ${SHADES[shade]})` : base, mark: mark || round ? pattern(mark, round, dark) : "", dark };
}

/** Slanted lines: what they lie over is idle. */
export function hatch() {
  if (!document.getElementById("idle")) {
    const made = element("pattern", { id: "idle", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    made.append(element("path", { d: "M0 3H6", class: "hatch" }));
    document.querySelector("#patterns defs").append(made);
  }
  return "url(#idle)";
}

/** Marks for all colours that are as dark. `round`: how often all are used up; each time the marks are larger. */
function pattern(mark, round, dark) {
  const id = `mark-${mark}-${round}${dark ? "-dark" : ""}`;
  if (!document.getElementById(id)) {
    const made = element("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: `scale(${0.7 + round / 2})` });
    made.append(element("path", { d: MARKS[mark] || "M0 0H8", stroke: dark ? "#fff" : "#000", "stroke-opacity": 0.4, fill: "none" }));
    document.querySelector("#patterns defs").append(made);
  }
  return `url(#${id})`;
}

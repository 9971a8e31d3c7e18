// Nodes as pictures: a torus as a grid, a line or ring as a row of devices. A colour never speaks alone: a pattern does, too.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people with any kind of colour vision can tell apart; vermillion is kept for what is broken.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"];
const BROKEN = "#d55e00";
const GREY = "#9a9aa6";
const MARKS = [
  "", "M0 8L8 0", "M0 4H8", "M4 0V8", "M0 0L8 8M0 8L8 0",
  "M0 0L8 8", "M0 4H8M4 0V8", "M3 3H5V5H3Z", "M0 2H8M0 6H8", "M2 0V8M6 0V8", "M0 6L4 2L8 6",
];
const CELL = 36;
const BAND = 14;
const GAP = 12;
const COLUMNS = 4;
const LONGEST_ROW = 6;

export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Ids as in annotations: "0,1,5". */
export const ids = (text) => (text ? text.split(",").map(Number) : []);

/** "0-3,5" */
export function ranges(numbers) {
  const parts = [];
  for (const each of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === each - 1) last[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

const PAINTS = COLOURS.length * MARKS.length;
const places = new Map(); // by key: the number of its paint
const taken = new Set(); // those numbers

/** Give each of these keys a paint that no other has. A key keeps its paint while it is here; others may get it then. */
export function assign(keys) {
  for (const [key, number] of places) {
    if (keys.has(key)) continue;
    places.delete(key);
    taken.delete(number);
  }
  for (const key of [...keys].sort()) paint(key);
}

/** What to fill something with that belongs to `key`, on every node: by its hash, or the next paint that is not taken. */
export function paint(key) {
  if (!places.has(key)) {
    let hash = 0x811c9dc5; // FNV-1a
    for (const character of key) hash = Math.imul(hash ^ character.codePointAt(0), 0x01000193) >>> 0;
    const first = ((hash ^ (hash >>> 15)) >>> 0) % PAINTS;
    let tried = 0;
    const place = () => ((first + tried) % PAINTS) + PAINTS * Math.floor(tried / PAINTS);
    while (taken.has(place())) tried++;
    taken.add(place());
    places.set(key, place());
  }
  const number = places.get(key);
  const mark = MARKS[Math.floor(number / COLOURS.length) % MARKS.length];
  return pattern(COLOURS[number % COLOURS.length], mark, Math.floor(number / PAINTS));
}

export const broken = () => pattern(BROKEN, MARKS[4]);
const heldDown = () => pattern(BROKEN, MARKS[1]);
const disabled = () => pattern(GREY, MARKS[2]);
const reserved = () => pattern(GREY, MARKS[3]);
export const grey = () => pattern(GREY, "");
export const plain = (number) => pattern(COLOURS[number], MARKS[number]);

/** What a device is filled with that no pod's colour says; "missing" is as empty as a free one, in a dashed frame. */
export const STATES = { unhealthy: broken, missing: () => "", "held down": heldDown, disabled, reserved };

/** `round`: how often all colours and marks are used up; each time the marks are larger, and on a darker line. */
function pattern(colour, mark, round = 0) {
  const id = `p${colour.slice(1)}-${MARKS.indexOf(mark)}${round ? `-${round}` : ""}`;
  if (!document.getElementById(id)) {
    const made = element("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" });
    if (round) made.setAttribute("patternTransform", `scale(${1 + round / 2})`);
    made.append(element("rect", { width: 8, height: 8, fill: colour }));
    if (round) made.append(element("path", { d: "M0 0H8", stroke: "#000", "stroke-width": 1.5 }));
    if (mark) made.append(element("path", { d: mark, stroke: "#000", "stroke-opacity": 0.55, "stroke-width": 1.5 }));
    document.querySelector("#patterns defs").append(made);
  }
  return `url(#${id})`;
}

/** What each device is: healthy or one of STATES, and who has it. */
export function devicesOf(node) {
  const { spec, status } = node;
  const [missing, heldDown, disabled, free] = ["missingDevices", "heldDownDevices", "disabledDevices", "freeDevices"]
    .map((key) => new Set(ids(status[key])));
  const reserved = new Map();
  for (const [cores, pod] of Object.entries(status.reserved)) {
    for (const core of ids(cores)) reserved.set(Math.floor(core / spec.coresPerDevice), `for ${pod}`);
  }
  const holders = new Map();
  for (const holder of status.holders) {
    for (const device of ids(holder.devices)) holders.set(device, [...(holders.get(device) || []), holder]);
  }
  return Array.from({ length: spec.devices }, (_, id) => {
    const held = holders.get(id) || [];
    const sick = status.unhealthyDevices[id];
    const kept = held.length ? "" : reserved.get(id);
    const health = missing.has(id) ? "missing" : heldDown.has(id) ? "held down" : sick ? "unhealthy"
      : disabled.has(id) ? "disabled" : kept ? "reserved" : "healthy";
    const why = sick || kept || "";
    return { id, health, why, holders: held, free: free.has(id) };
  });
}

function place(spec, id) {
  const columns = spec.topology === "torus" ? COLUMNS : Math.min(spec.devices, LONGEST_ROW);
  const row = Math.floor(id / columns);
  // A line that goes on in the next row goes on below: its neighbours stay neighbours.
  const column = spec.topology !== "torus" && row % 2 ? columns - 1 - (id % columns) : id % columns;
  return [GAP + column * (CELL + GAP), GAP + row * (CELL + GAP)];
}

/** The picture of a node, empty until `complete`: a thousand complete ones take a second to make. */
export function picture(node) {
  const { spec } = node;
  const placed = Array.from({ length: spec.devices }, (_, id) => place(spec, id));
  const width = Math.max(0, ...placed.map(([x]) => x)) + CELL + GAP;
  const height = Math.max(0, ...placed.map(([, y]) => y)) + CELL + GAP;
  const root = element("svg", { class: "node", viewBox: `0 0 ${width} ${height}`, role: "img" });
  return { root, cells: [], placed, width, height };
}

/** Add links and devices, which are only `update`d from then on; `numbered` shows their ids. */
export function complete({ root, cells, placed, width, height }, { spec }, numbered) {
  const inner = [];
  const around = [];
  for (const [one, other] of linksOf(spec)) {
    const [[x, y], [u, v]] = [placed[one], placed[other]];
    const near = Math.abs(x - u) + Math.abs(y - v) <= CELL + GAP;
    const half = CELL / 2;
    if (near) inner.push(`M${x + half} ${y + half}L${u + half} ${v + half}`);
    else if (x === u) around.push(`M${x + half} ${y}V0M${u + half} ${v + CELL}V${height}`);
    else if (y === v) around.push(`M${x} ${y + half}H0M${u + CELL} ${v + half}H${width}`);
    else around.push(`M${x + half} ${y + half}L${u + half} ${v + half}`);
  }
  root.append(element("path", { class: "links", d: inner.join("") }));
  root.append(element("path", { class: "links wrap", d: around.join("") }));
  placed.forEach(([x, y], id) => {
    const rectangle = element("rect", { class: "device", x, y, width: CELL, height: CELL, rx: 4 });
    const title = element("title");
    const shared = element("circle", { class: "shared", cx: x + CELL - 6, cy: y + 6, r: 3.5, display: "none" });
    const band = element("rect", { class: "band", x, y: y + CELL - BAND, width: CELL, height: BAND, display: "none" });
    const group = element("g", {}, title, rectangle, band, shared);
    if (numbered) group.append(element("text", { x: x + 3, y: y + CELL + 10 }, `${id}`));
    root.append(group);
    cells.push({ group, rectangle, title, shared, band });
  });
}

function linksOf({ topology, devices }) {
  const links = [];
  for (let id = 0; id < devices; id++) {
    if (topology === "torus") {
      const right = id % COLUMNS === COLUMNS - 1 ? id - COLUMNS + 1 : id + 1;
      links.push([Math.min(id, right), Math.max(id, right)], [id, (id + COLUMNS) % devices].sort((a, b) => a - b));
    } else if (id + 1 < devices) links.push([id, id + 1]);
  }
  if (topology === "ring" && devices > 2) links.push([0, devices - 1]);
  return links;
}

/**
 * Bring a picture up to date; a device that changes lights up. `colours` gives a device's fill, and `promised` says
 * whether a holder was only promised what it has.
 */
export function update({ root, cells }, node, colours, promised) {
  const devices = devicesOf(node);
  root.setAttribute("aria-label", described(node));
  for (const device of cells.length ? devices : []) {
    const { id, health, why, holders, free } = device;
    const { group, rectangle, title, shared, band } = cells[id];
    const who = holders.map((each) => `${each.namespace}/${each.name}${promised(each) ? " (promised)" : ""}`).join(", ");
    const text = `device ${id}: ${health}${why ? ` (${why})` : ""}, ${who || (free ? "free" : "not free")}`;
    rectangle.style.fill = colours(device);
    const two = holders.length && health !== "healthy"; // who has it above, what is wrong with it below
    band.setAttribute("display", two ? "" : "none");
    if (two) band.style.fill = STATES[health]();
    if (title.textContent === text) continue;
    const lit = title.textContent;
    title.textContent = text;
    rectangle.dataset.state = holders.length ? "used" : health !== "healthy" ? health : "free";
    rectangle.dataset.health = health;
    rectangle.classList.toggle("promised", holders.length > 0 && holders.every(promised));
    for (const part of [rectangle, band]) part.classList.toggle("missing", health === "missing");
    shared.setAttribute("display", holders.length && (holders.length > 1 || !wholly(node, id, holders[0])) ? "" : "none");
    if (lit) {
      group.classList.remove("lit");
      requestAnimationFrame(() => group.classList.add("lit"));
    }
  }
}

function wholly(node, id, holder) {
  const count = node.spec.coresPerDevice;
  return ids(holder.cores).filter((core) => Math.floor(core / count) === id).length === count;
}

/** How to fill devices: by what `keyOf` gives for a pod that has one, or by "health" or "hold-down". */
export const coloursBy = (choice, keyOf) => ({ health, why, holders }) => {
  if (choice === "hold-down" && health === "held down") return paint(why);
  if (health !== "healthy" && !(keyOf && holders.length)) return STATES[health]();
  if (!holders.length) return "";
  if (choice === "hold-down") return grey();
  return choice === "health" ? plain(0) : paint(keyOf(holders[0]));
};

function described(node) {
  const { used, usedBroken, free, unused } = countsOf(node);
  const parts = [`${free} free`, ...usedTexts(used, usedBroken), ...unused.map(([state, number]) => `${number} ${state}`)];
  return `${node.spec.devices} devices in a ${node.spec.topology}: ${parts.join(", ")}`;
}

export const usedTexts = (used, broken) =>
  (used ? [`${used} used${broken ? `, ${broken} of them unhealthy or missing` : ""}`] : []);

/**
 * A node in numbers of devices, as the extender counts them: each is used, free or one of `unused`; `usedBroken` are a
 * part of the used ones. `largest` is the largest set that could be given now.
 */
export function countsOf(node) {
  const { deviceCounts, freeSets } = node.status;
  const { used, usedBroken, free, closed, heldDown, ...rest } = deviceCounts;
  const sizes = Object.entries(freeSets).filter(([, number]) => number > 0);
  return {
    open: node.status.open,
    devices: node.spec.devices,
    used,
    usedBroken,
    free,
    unused: Object.entries({ ...rest, "held down": heldDown, "on closed nodes": closed }).filter(([, number]) => number),
    largest: free ? Math.max(0, ...sizes.map(([count]) => Number(count))) : 0,
  };
}

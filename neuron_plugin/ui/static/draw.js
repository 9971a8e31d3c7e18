// Nodes as pictures: a torus as a grid, a line or ring as a row of devices. A colour never speaks alone: a pattern does, too.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people with any kind of colour vision can tell apart; vermillion is kept for what is broken.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"];
const BROKEN = "#d55e00";
const MARKS = ["", "M0 8L8 0", "M0 4H8", "M4 0V8", "M0 0L8 8M0 8L8 0"];
const CELL = 36;
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

/** What to fill something with that belongs to `key`: the same for the same key, on every node and after a reload. */
export function paint(key) {
  let hash = 0x811c9dc5; // FNV-1a
  for (const character of key) hash = Math.imul(hash ^ character.codePointAt(0), 0x01000193) >>> 0;
  hash = (hash ^ (hash >>> 15)) >>> 0;
  return pattern(COLOURS[hash % COLOURS.length], MARKS[(hash >>> 8) % MARKS.length]);
}

export const broken = () => pattern(BROKEN, MARKS[4]);
export const plain = (number) => pattern(COLOURS[number], MARKS[number]);

function pattern(colour, mark) {
  const id = `p${colour.slice(1)}-${MARKS.indexOf(mark)}`;
  if (!document.getElementById(id)) {
    const made = element("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" });
    made.append(element("rect", { width: 8, height: 8, fill: colour }));
    if (mark) made.append(element("path", { d: mark, stroke: "#000", "stroke-opacity": 0.55, "stroke-width": 1.5 }));
    document.querySelector("#patterns defs").append(made);
  }
  return `url(#${id})`;
}

/** What each device is: free, used, unhealthy or missing, and who has it. */
export function devicesOf(node) {
  const { spec, status } = node;
  const missing = new Set(ids(status.missingDevices));
  const free = new Set(ids(status.freeDevices));
  const holders = new Map();
  for (const holder of status.holders) {
    for (const device of ids(holder.devices)) holders.set(device, [...(holders.get(device) || []), holder]);
  }
  return Array.from({ length: spec.devices }, (_, id) => {
    const why = status.unhealthyDevices[id] || "";
    const held = holders.get(id) || [];
    const health = missing.has(id) ? "missing" : why ? "unhealthy" : "healthy";
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

/** The picture of a node: made once, and then only `update`d. */
export function picture(node, details) {
  const { spec } = node;
  const placed = Array.from({ length: spec.devices }, (_, id) => place(spec, id));
  const width = Math.max(0, ...placed.map(([x]) => x)) + CELL + GAP;
  const height = Math.max(0, ...placed.map(([, y]) => y)) + CELL + GAP;
  const root = element("svg", { class: "node", viewBox: `0 0 ${width} ${height}`, role: "img" });
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
  const cells = placed.map(([x, y], id) => {
    const rectangle = element("rect", { class: "device", x, y, width: CELL, height: CELL, rx: 4 });
    const title = element("title");
    const shared = element("circle", { class: "shared", cx: x + CELL - 6, cy: y + 6, r: 3.5, display: "none" });
    const group = element("g", {}, title, rectangle, shared);
    if (details) group.append(element("text", { x: x + 3, y: y + CELL + 10 }, `${id}`));
    root.append(group);
    return { group, rectangle, title, shared };
  });
  return { root, cells };
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

/** Bring a picture up to date; a device whose look has changed lights up. */
export function update({ root, cells }, node, colour) {
  const devices = devicesOf(node);
  for (const { id, health, why, holders, free } of devices) {
    const { group, rectangle, title, shared } = cells[id];
    const who = holders.map((each) => `${each.namespace}/${each.name}`).join(", ");
    const text = `device ${id}: ${health}${why ? ` (${why})` : ""}, ${who || (free ? "free" : "not free")}`;
    if (title.textContent === text && rectangle.dataset.colour === colour) continue;
    const lit = title.textContent && title.textContent !== text;
    title.textContent = text;
    rectangle.dataset.colour = colour;
    rectangle.dataset.state = health !== "healthy" ? health : holders.length ? "used" : "free";
    rectangle.classList.toggle("missing", health === "missing");
    rectangle.style.fill = fill(health, holders, colour);
    shared.setAttribute("display", holders.length && (holders.length > 1 || !wholly(node, id, holders[0])) ? "" : "none");
    if (lit) {
      group.classList.remove("lit");
      requestAnimationFrame(() => group.classList.add("lit"));
    }
  }
  root.setAttribute("aria-label", described(node, devices));
}

function wholly(node, id, holder) {
  const count = node.spec.coresPerDevice;
  return ids(holder.cores).filter((core) => Math.floor(core / count) === id).length === count;
}

function fill(health, holders, colour) {
  if (health === "missing") return "none";
  if (health === "unhealthy") return broken();
  if (!holders.length) return "";
  if (colour === "health") return plain(0);
  return paint(colour === "namespace" ? holders[0].namespace : `${holders[0].namespace}/${holders[0].name}`);
}

function described(node, devices) {
  const free = devices.filter((each) => each.free).length;
  const sick = devices.filter((each) => each.health !== "healthy").length;
  return `${node.spec.devices} devices in a ${node.spec.topology}: ${free} free, ${sick} unhealthy or missing`;
}

/** A node in numbers of devices; `largest` is the largest set that could be given now. */
export function countsOf(node) {
  const devices = devicesOf(node);
  const sizes = Object.entries(node.status.freeSets).filter(([, number]) => number > 0);
  return {
    open: node.status.open,
    devices: devices.length,
    used: devices.filter((each) => each.holders.length).length,
    free: devices.filter((each) => each.free).length,
    sick: devices.filter((each) => each.health !== "healthy").length,
    largest: Math.max(0, ...sizes.map(([count]) => Number(count))),
  };
}

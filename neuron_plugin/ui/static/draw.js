// Nodes as pictures: devices in rows and columns, with their links. A pod's set is one shape.

import { STATES, described, factsOf, nameOf, useText } from "./facts.js";
import { element, hatch } from "./paint.js";

const LARGE = { cell: 40, gap: 10, edge: 12, corner: 7 };
const SMALL = { cell: 9, gap: 1.5, edge: 1, corner: 0 }; // corners of hundreds of pictures take a browser time to paint
const COLUMNS = 4; // at least, so that the devices of all nodes have one size
const MARGIN = 6; // beside a name
const [NAME_FONT, TIGHT_FONT] = ["600 13px system-ui, sans-serif", "600 10px system-ui, sans-serif"]; // as in style.css
const ruler = document.createElement("canvas").getContext("2d");
const BROKEN = ["unhealthy", "missing"];
// What lies over a device, around its middle: no state is known by a colour alone.
export const MARKS = {
  unhealthy: "M-9 -9L9 9M9 -9L-9 9", missing: "M-9 -9L9 9M9 -9L-9 9", "held down": "M-4 -7V7M4 -7V7", disabled: "M-8 0H8",
  reserved: "M0 -8L8 0L0 8L-8 0Z",
};

/** The picture of a node, empty until `update` is asked for all: hundreds of complete ones take a second to make. */
export function picture(node, size) {
  const { spec } = node;
  const measures = size === "small" ? SMALL : LARGE;
  const { cell, gap, edge } = measures;
  const placed = spec.places.map(([row, column]) => [edge + column * (cell + gap), edge + row * (cell + gap)]);
  const columns = Math.max(COLUMNS, ...spec.places.map(([, column]) => column + 1));
  const width = 2 * edge + columns * (cell + gap) - gap;
  const height = Math.max(0, ...placed.map(([, y]) => y)) + cell + edge;
  const role = size === "small" ? { "aria-hidden": "true" } : { role: "img" }; // of a small one its link says it all
  const root = element("svg", { class: `node ${size}`, viewBox: `0 0 ${width} ${height}`, ...role });
  return { root, size, measures, placed, width, cells: [] };
}

/**
 * Bring a picture up to date; a device that changes lights up. `look` gives the paint of a holder, and whether it
 * was only promised what it has; `all` draws the devices, too, where they are not drawn yet.
 */
export function update(drawn, node, look, all) {
  const { root, size } = drawn;
  if (root.getAttribute("role") === "img") root.setAttribute("aria-label", described(node));
  if (size === "small") {
    if (all || root.firstChild) small(drawn, node, look);
    return;
  }
  if (all && !drawn.cells.length) complete(drawn, node);
  if (!drawn.cells.length) return;
  const { devices } = factsOf(node);
  for (const device of devices) cell(drawn, device, look, node.spec.coresPerDevice);
  drawn.largest.setAttribute("d", node.status.open ? union(drawn, node.status.largestFreeSet) : "");
  const held = node.status.holders.map((holder) => shape(drawn, node, holder, look));
  drawn.sets.replaceChildren(...held.flatMap(({ shapes }) => shapes));
  drawn.names.replaceChildren(...held.flatMap(({ name }) => name || []));
  drawn.use.replaceChildren(...devices.flatMap((each) => used(drawn, each)));
  drawn.marks.replaceChildren(...marks(drawn, devices));
}

function complete(drawn, { spec }) {
  const { root, placed, measures: { cell: side, gap, edge, corner }, width } = drawn;
  const inner = [];
  const around = []; // of each end its own part
  const half = side / 2;
  spec.links.forEach((others, id) => others.forEach((other) => {
    const [[x, y], [u, v]] = [placed[id], placed[other]];
    const near = Math.abs(x - u) + Math.abs(y - v) <= side + gap;
    if (near && id < other) inner.push(`M${x + half} ${y + half}L${u + half} ${v + half}`);
    if (near) return;
    if (x === u) around.push(`M${x + half} ${y < v ? y : y + side}v${y < v ? -edge : edge}`);
    else {
      const left = y === v ? x < u : x < width / 2;
      around.push(`M${left ? x : x + side} ${y + half}h${left ? -edge : edge}`);
    }
  }));
  drawn.largest = element("path", { class: "largest" });
  drawn.sets = element("g", { class: "sets" });
  drawn.use = element("g", { class: "use" });
  drawn.marks = element("g", { class: "marks" });
  drawn.names = element("g", { class: "names" });
  const square = ([x, y], name) => element("rect", { class: name, x, y, width: side, height: side, rx: corner });
  drawn.cells = placed.map((place, id) => {
    const device = square(place, "device");
    const title = element("title");
    const group = element("g", { class: "cell", "data-device": id }, title, device);
    return { group, title, device, frame: square(place, "frame") };
  });
  root.append(
    element("path", { class: "links", d: inner.join("") }), element("path", { class: "links wrap", d: around.join("") }),
    drawn.largest, ...drawn.cells.map((each) => each.group), drawn.sets, drawn.use, ...drawn.cells.map((each) => each.frame), drawn.marks, drawn.names,
  );
}

/** A device in words. */
export function deviceText({ id, health, why, holders, free, use }, look) {
  const who = holders.map((each) => `${nameOf(each)}${look(each).promised ? " (promised)" : ""}`).join(", ");
  const has = [who || (free ? "free" : "not free"), useText(use)].filter(Boolean).join(", ");
  return `device ${id}: ${health}${why && why !== health ? ` (${why})` : ""}, ${has}`;
}

function cell({ cells }, device, look, coresPerDevice) {
  const { group, title, device: square, frame } = cells[device.id];
  const text = deviceText(device, look);
  if (title.textContent === text) return;
  const before = title.textContent;
  title.textContent = text;
  group.dataset.pods = device.holders.map(nameOf).join(" ");
  square.dataset.state = device.holders.length ? "used" : device.health !== "healthy" ? device.health : device.free ? "free" : "other";
  square.dataset.health = device.health;
  const cores = new Set(device.holders.flatMap((each) => each.cores).filter((core) => Math.floor(core / coresPerDevice) === device.id));
  square.classList.toggle("partly", cores.size > 0 && cores.size < coresPerDevice);
  frame.classList.toggle("missing", device.health === "missing");
  if (before) {
    frame.classList.remove("lit");
    requestAnimationFrame(() => frame.classList.add("lit"));
  }
}

/** How busy a device is, as a level at its foot; slanted lines over one that is idle. */
function used({ placed, measures: { cell: side, corner } }, { id, use }) {
  if (!use?.known) return [];
  const [x, y] = placed[id];
  if (use.idleSince) return [element("rect", { class: "idle", x, y, width: side, height: side, rx: corner, fill: hatch() })];
  const [foot, width] = [side - 2 * corner, 4];
  const level = { x: x + corner, y: y + side - width - 2, height: width, rx: width / 2 };
  return [
    element("rect", { class: "level", width: foot, ...level }),
    element("rect", { class: "level busy", width: (foot * use.busyPercent) / 100, ...level }),
  ];
}

const box = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}Z`;

/** Whole devices as one outline: their squares, and what is between two neighbours. */
function union({ placed, measures: { cell: side, gap, corner } }, devices) {
  const here = new Set(devices.map((id) => placed[id].join()));
  const step = side + gap;
  const has = (x, y) => here.has([x, y].join());
  return devices.map((id) => {
    const [x, y] = placed[id];
    const [right, below] = [has(x + step, y), has(x, y + step)];
    if (!corner) {
      return box(x, y, right ? step : side, side) + (below ? box(x, y + side, right && has(x + step, y + step) ? step : side, gap) : "");
    }
    const bend = (dx, dy) => `a${corner} ${corner} 0 0 1 ${dx} ${dy}`;
    const length = side - 2 * corner;
    return `M${x + corner} ${y}h${length}${bend(corner, corner)}v${length}${bend(-corner, corner)}h${-length}` +
      `${bend(-corner, -corner)}v${-length}${bend(corner, -corner)}Z` +
      (right ? box(x + side / 2, y, step, side) : "") + (below ? box(x, y + side / 2, side, step) : "") +
      (right && below && has(x + step, y + step) ? box(x + side / 2, y + side / 2, step, step) : "");
  }).join("");
}

/** What a holder has of a node: whole devices, and for others the part of the square that its cores are. */
function heldBy(drawn, { spec }, holder) {
  const { placed, measures: { cell: side } } = drawn;
  const cores = Map.groupBy(holder.cores, (core) => Math.floor(core / spec.coresPerDevice));
  const whole = [];
  const parts = [];
  for (const [id, some] of cores) {
    if (!placed[id]) continue;
    if (some.length === spec.coresPerDevice) whole.push(id);
    else for (const core of some) parts.push(box(placed[id][0] + (side * (core % spec.coresPerDevice)) / spec.coresPerDevice, placed[id][1], side / spec.coresPerDevice, side));
  }
  return { whole, d: union(drawn, whole) + parts.join("") };
}

function shape(drawn, node, holder, look) {
  const { whole, d } = heldBy(drawn, node, holder);
  const { paint: { colour, mark, dark }, promised } = look(holder);
  const { devices, usedBroken } = factsOf(node);
  const hurt = usedBroken && holder.devices.some((id) => devices[id]?.broken);
  const made = element("path", { class: `set${promised ? " promised" : ""}${hurt ? " hurt" : ""}`, d, "data-pod": nameOf(holder) });
  const pale = `color-mix(in srgb, ${colour}, var(--card) 55%)`;
  made.style.fill = promised ? pale : colour;
  if (drawn.size === "large") made.style.setProperty("--own", colour);
  const shapes = [made];
  if (mark) {
    shapes.push(element("path", { class: "set marks", d, "data-pod": nameOf(holder) }));
    shapes[1].style.fill = mark;
  }
  const name = drawn.size === "large" && label(drawn, whole.filter((id) => devices[id].health === "healthy"), holder.name);
  if (!name) return { shapes };
  name.dataset.pod = nameOf(holder);
  name.classList.toggle(promised ? "pale" : "on-dark", promised || dark);
  name.style.setProperty("--own", promised ? pale : colour);
  return { shapes, name };
}

/** The pod's name in the longest part of its shape that no mark covers: from below where that is higher than wide. */
function label({ placed, measures: { cell: side, gap } }, clear, name) {
  const step = side + gap;
  const here = new Set(clear.map((id) => placed[id].join()));
  let best = { score: 0 };
  for (const [x, y] of clear.map((id) => placed[id])) {
    let wide = Infinity;
    for (let high = 1; here.has([x, y + (high - 1) * step].join()); high++) {
      for (let column = 1; column < wide; column++) if (!here.has([x + column * step, y + (high - 1) * step].join())) wide = column;
      const score = 10 * Math.max(wide, high) + 5 * (wide >= high) + Math.min(wide, high);
      if (score > best.score) best = { score, x, y, wide, high };
    }
  }
  if (!best.score) return null;
  const { x, y, wide, high } = best;
  const tight = wide === 1 && high === 1;
  const room = Math.max(wide, high) * step - gap - MARGIN;
  const lines = tight ? inTwo(name, room) : [fitting(name, room, NAME_FONT)];
  const [middle, center] = [x + (wide * step - gap) / 2, y + (high * step - gap) / 2];
  const made = element("text", { class: `name${tight ? " tight" : ""}`, "text-anchor": "middle" });
  if (high > wide) made.setAttribute("transform", `rotate(-90 ${middle} ${center})`);
  lines.forEach((line, place) => {
    made.append(element("tspan", { x: middle, y: center + (tight ? 3 + 10 * (place - (lines.length - 1) / 2) : 4) }, line));
  });
  return made;
}

/** A short name in one line, another one in two: broken after a dash where there is one in the right place. */
function inTwo(name, room) {
  const text = fitting(name, 2 * room, TIGHT_FONT);
  if (fitting(text, room, TIGHT_FONT) === text) return [text];
  const cut = (at) => [text.slice(0, at), text.slice(at)];
  const fits = (line) => fitting(line, room, TIGHT_FONT) === line;
  const dashes = [...text.matchAll(/-/g)].map(({ index }) => cut(index + 1));
  return dashes.find((lines) => lines.every(fits)) || cut(Math.ceil(text.length / 2)).map((line) => fitting(line, room, TIGHT_FONT));
}

/** As much of a name as has room. Names of a workload differ at their end, so the middle is left out. */
function fitting(text, room, font) {
  ruler.font = font;
  const fits = (some) => ruler.measureText(some).width <= room;
  let [shown, most] = [text, text.length];
  while (most > 2 && !fits(shown)) {
    const end = Math.ceil((--most - 1) / 2);
    shown = `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
  }
  return shown;
}

/** The marks of these devices: a path for each state, over a wider one that keeps it apart from any fill. */
function marks({ placed, measures: { cell: side } }, devices) {
  return STATES.flatMap((state) => {
    const there = devices.filter((each) => each.health === state);
    if (!there.length) return [];
    const at = ({ id }) => `translate(${placed[id][0] + side / 2} ${placed[id][1] + side / 2})`;
    return there.map((each) => element("g", { class: `mark ${state.replace(" ", "-")}`, transform: at(each) },
      element("path", { class: "halo", d: MARKS[state] }), element("path", { d: MARKS[state] })));
  });
}

function small(drawn, node, look) {
  const { root, placed, measures: { cell: side } } = drawn;
  const { devices } = factsOf(node);
  const path = (name, those) => element("path", { class: name, d: those.map(({ id }) => box(...placed[id], side, side)).join("") });
  const off = devices.filter((each) => !each.free && !each.holders.length);
  const idle = path("idle", devices.filter((each) => each.use?.idleSince));
  idle.style.fill = hatch();
  const broken = devices.filter((each) => BROKEN.includes(each.health));
  const cross = ({ id }) => `M${placed[id][0] + 1.5} ${placed[id][1] + 1.5}l6 6m-6 0l6 -6`;
  root.replaceChildren(
    ...(off.length ? [path("device off", off)] : []),
    path("device free", devices.filter((each) => each.free || each.holders.length)),
    ...node.status.holders.flatMap((holder) => shape(drawn, node, holder, look).shapes),
    ...(node.status.idleDevices.length ? [idle] : []),
    ...(broken.length ? [element("path", { class: "halo", d: broken.map(cross).join("") }), element("path", { class: "cross", d: broken.map(cross).join("") })] : []),
  );
}

// The page: two watches, and what is drawn of them. Changes are collected and drawn once a frame.

import { Detail } from "./detail.js";
import { STATES, assign, coloursBy, complete, countsOf, devicesOf, element, grey, paint, picture, plain, update, usedTexts } from "./draw.js";
import { html, put } from "./html.js";
import { drawRoom, readRoom } from "./room.js";
import { downloadUse, drawUse, readUse } from "./use.js";
import { Collection, fetched } from "./watch.js";

const MOST_IN_LEGEND = 16;
const MOST_EXPLAINED = 10;
const FIRST_OPEN = 2;
const EXPLAIN_MS = 5000;

const at = (id) => document.getElementById(id);
const cards = new Map(); // by node name
const dirty = new Set();
const lost = new Map();
let ordered = false;
let due = false;
let painted = new Set(); // what has a paint of its own

const nodes = new Collection("neuronnodes", (object, before) => touch((object || before).metadata.name), connection);
const pods = new Collection("neuronpods", podChanged, connection);
const detail = new Detail(at("detail"), draw);

// A picture is completed when its card comes near to what the window shows.
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const name = target.dataset.node;
    const card = cards.get(name);
    if (!isIntersecting || !card || card.item !== target || card.drawn.cells.length) continue;
    complete(card.drawn, nodes.objects.get(name), false);
    touch(name);
  }
}, { rootMargin: "100%" });

/** What pods of one colour have in common. */
const KEYS = {
  pod: (holder) => `${holder.namespace}/${holder.name}`,
  namespace: (holder) => holder.namespace,
  group: (holder) => {
    const { group, controller } = (pods.objects.get(holder.uid) || { spec: {} }).spec;
    return `${holder.namespace}/${group || controller || holder.name}`;
  },
};
const colours = () => coloursBy(at("colour").value, KEYS[at("colour").value]);

const isPromised = ({ uid }) => pods.objects.get(uid)?.status.phase === "Promised";

function podChanged(pod, before) {
  const promised = [before, pod].map((each) => (each ? each.status.promisedNode : ""));
  if (promised[0] !== promised[1]) for (const name of promised) if (name) touch(name);
  if (at("colour").value === "group") touch((pod || before).spec.nodeName); // the node may have come before its pod
  if (!pod || pod.status.phase === "Terminating") readRoom(draw);
  draw();
}

function touch(name) {
  dirty.add(name);
  draw();
}

function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (dirty.size) {
      painted = keysNow();
      assign(painted);
    }
    for (const name of dirty) drawCard(name);
    if (dirty.size) drawChoices();
    dirty.clear();
    arrange();
    drawNumbers();
    drawLegend();
    drawWaiting();
    drawRoom(at("room"));
    drawUse([...cards.values()].map((card) => card.counts));
    detail.draw(nodes.objects.get(detail.name), pods.objects, colours(), isPromised);
  });
}

function connection(plural, problem) {
  if (problem) lost.set(plural, problem);
  else lost.delete(plural);
  document.body.classList.toggle("lost", lost.size > 0);
  const since = new Date(Math.min(nodes.heard, pods.heard)).toLocaleTimeString();
  const text = lost.size ? `not live since ${since}: ${[...lost.values()][0]}; trying again` : "live";
  if (at("connection").textContent !== text) at("connection").textContent = text;
}

function drawCard(name) {
  const known = nodes.objects.get(name);
  const node = known && known.spec.devices ? known : undefined; // other nodes of the cluster have nothing to show
  let card = cards.get(name);
  const shape = node && `${node.spec.topology} ${node.spec.devices}`;
  if (card && (!node || card.shape !== shape)) {
    card.item.remove();
    observer.unobserve(card.item);
    cards.delete(name);
    card = undefined;
    ordered = false;
  }
  if (!node) return;
  if (!card) {
    const drawn = picture(node);
    const about = html("span");
    const state = html("span", { class: "state" });
    const link = html("a", { class: "card", href: `#node/${encodeURIComponent(name)}` }, html("strong", {}, name), drawn.root, about, state);
    card = { item: html("li", { "data-node": name }, link), link, drawn, about, state, shape };
    cards.set(name, card);
    observer.observe(card.item);
    ordered = false;
  }
  update(card.drawn, node, colours(), isPromised);
  card.counts = countsOf(node);
  card.states = new Set(devicesOf(node).map((each) => each.health));
  const { free, largest, used, usedBroken, unused } = card.counts;
  card.about.textContent = `${node.spec.instanceType || "unknown type"}: ${free} of ${node.spec.devices} free` +
    (free ? `, largest set ${largest}` : "");
  const sick = unused.filter(([state]) => state in STATES).map(([state, number]) => `${number} ${state}`);
  if (usedBroken) sick.unshift(...usedTexts(used, usedBroken));
  card.state.textContent = [!node.status.open && `closed: ${node.status.reason}`, ...sick].filter(Boolean).join("; ");
  card.link.classList.toggle("closed", !node.status.open);
}

/** Sort and filter. The order of the list is changed only when it has changed. */
function arrange() {
  const [sort, type, namespace] = ["sort", "type", "namespace"].map((id) => at(id).value);
  const text = at("text").value.toLowerCase();
  let shown = 0;
  for (const [name, { item }] of cards) {
    const { spec, status } = nodes.objects.get(name);
    const named = [name, ...status.holders.map((each) => `${each.namespace}/${each.name}`)];
    item.hidden = !(
      (!type || spec.instanceType === type) &&
      (!namespace || status.holders.some((each) => each.namespace === namespace)) &&
      (!text || named.some((each) => each.toLowerCase().includes(text)))
    );
    shown += !item.hidden;
  }
  at("none").hidden = shown > 0;
  if (ordered && sort !== "use") return;
  ordered = true;
  const used = (name) => cards.get(name).counts.used;
  const byName = new Intl.Collator("en", { numeric: true }).compare;
  const byType = (a, b) => byName(nodes.objects.get(a).spec.instanceType, nodes.objects.get(b).spec.instanceType);
  const order = { name: byName, type: (a, b) => byType(a, b) || byName(a, b), use: (a, b) => used(b) - used(a) || byName(a, b) };
  const items = [...cards.keys()].sort(order[sort]).map((name) => cards.get(name).item);
  const list = at("nodes");
  if (items.some((item, place) => list.children[place] !== item)) {
    const focused = document.activeElement;
    list.replaceChildren(...items);
    if (list.contains(focused)) focused.focus();
  }
}

function drawChoices() {
  const known = [...nodes.objects.values()];
  choices(at("type"), known.map((each) => each.spec.instanceType));
  choices(at("namespace"), known.flatMap((each) => each.status.holders.map((holder) => holder.namespace)));
}

function choices(select, values) {
  const wanted = ["", ...[...new Set(values.filter(Boolean))].sort()];
  if (select.value && !wanted.includes(select.value)) wanted.push(select.value);
  if (wanted.join() === [...select.options].map((each) => each.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map((value) => html("option", { value }, value || "all")));
  select.value = chosen;
}

function drawNumbers() {
  const counts = [...cards.values()].map((card) => card.counts);
  const sum = (key) => counts.reduce((total, each) => total + each[key], 0);
  const unused = new Map();
  for (const each of counts) for (const [state, number] of each.unused) unused.set(state, (unused.get(state) || 0) + number);
  const waiting = waitingPods();
  const promised = [...pods.objects.values()].filter((pod) => pod.status.phase === "Promised").length;
  const numbers = {
    nodes: counts.length,
    "nodes closed": counts.length - sum("open"),
    devices: sum("devices"),
    used: sum("used"),
    free: sum("free"),
    ...Object.fromEntries(unused),
    "largest free set": Math.max(0, ...counts.map((each) => each.largest)),
    "pods waiting": waiting.length,
    ...(promised ? { "pods promised": promised } : {}),
  };
  const parts = { used: [sum("usedBroken"), "unhealthy or missing"], "pods waiting": [waiting.filter((pod) => pod.status.gated).length, "gated"] };
  const below = (name) => (parts[name]?.[0] ? [html("small", {}, parts[name].join(" "))] : []);
  put(at("numbers"), ...Object.entries(numbers).map(([name, number]) =>
    html("div", {}, html("dt", {}, name, ...below(name)), html("dd", {}, `${number}`))));
}

/** What has a paint of its own now. */
function keysNow() {
  const colour = at("colour").value;
  const all = [...nodes.objects.values()];
  if (KEYS[colour]) return new Set(all.flatMap((node) => node.status.holders.map(KEYS[colour])));
  if (colour !== "hold-down") return new Set();
  const held = all.filter((node) => node.status.heldDownDevices).flatMap(devicesOf).filter((each) => each.health === "held down");
  return new Set(held.map((each) => each.why));
}

function drawLegend() {
  const colour = at("colour").value;
  const entries = [["free", ""]];
  const seen = new Set([...cards.values()].flatMap((card) => [...card.states]));
  for (const [state, fill] of Object.entries(STATES)) if (seen.has(state)) entries.push([state, fill()]);
  const used = { health: plain(0), "hold-down": grey() }[colour];
  if (used) entries.push(["used", used]);
  const sorted = [...painted].sort();
  entries.push(...sorted.slice(0, MOST_IN_LEGEND).map((name) => [name, paint(name)]));
  const swatch = ([name, fill]) => {
    const box = element("rect", { class: `device ${name === "missing" ? "missing" : ""}`, x: 1, y: 1, width: 14, height: 14 });
    box.style.fill = fill;
    return html("li", {}, element("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "swatch" }, box), name);
  };
  const more = sorted.length > MOST_IN_LEGEND ? [html("li", {}, `and ${sorted.length - MOST_IN_LEGEND} more`)] : [];
  put(at("legend"), ...entries.map(swatch), ...more);
}

// Waiting pods. Why each waits is asked of the extender, for the first few, again and again while they wait.

const reasons = new Map();
const opened = new Map(); // by UID, whether the user wants to read why

/** In the order of the list: those of high priority first. */
const waitingPods = () => [...pods.objects.values()].filter((pod) => pod.status.phase === "Waiting")
  .sort((a, b) => b.spec.priority - a.spec.priority || (nameOf(a) < nameOf(b) ? -1 : 1));

function drawWaiting() {
  const waiting = waitingPods();
  at("waiting").hidden = !waiting.length;
  put(at("waiting-pods"), ...waiting.map((pod, place) => {
    const asked = pod.spec.containers.map((each) => `${each.name}: ${each.count} ${each.resource}`).join(", ");
    const about = html("summary", {}, html("strong", {}, nameOf(pod)), ` asks for ${asked}${howOf(pod.status)}`);
    const why = pod.status.problem || reasons.get(pod.metadata.uid);
    const part = html("details", { "data-uid": pod.metadata.uid }, about, html("pre", { tabindex: "0" }, why || (place < MOST_EXPLAINED ? "..." : askYourself(pod))));
    part.open = opened.get(pod.metadata.uid) ?? place < FIRST_OPEN;
    about.addEventListener("click", () => opened.set(pod.metadata.uid, !part.open));
    return html("li", {}, part);
  }));
}

const howOf = ({ gated, releasedPlainly }) => (gated ? " (gated)" : releasedPlainly ? " (released without a place)" : "");

const askYourself = (pod) =>
  `The first ${MOST_EXPLAINED} are explained here; for this one: neuron-plugin explain ${nameOf(pod)}`;

const nameOf = (pod) => `${pod.metadata.namespace}/${pod.metadata.name}`;

async function explain() {
  for (;;) {
    const waiting = waitingPods();
    const uids = new Set(waiting.map((pod) => pod.metadata.uid));
    for (const kept of [reasons, opened]) for (const uid of kept.keys()) if (!uids.has(uid)) kept.delete(uid);
    for (const pod of waiting.slice(0, MOST_EXPLAINED)) {
      if (document.hidden) break;
      try {
        const text = await (await fetched(`../explain/${nameOf(pod)}`)).text();
        const why = text.split("\n").slice(1).join("\n").trim();
        if (reasons.get(pod.metadata.uid) !== why) {
          reasons.set(pod.metadata.uid, why);
          draw();
        }
      } catch {
        // Gone meanwhile, or the extender is: the watch will say so.
      }
    }
    await new Promise((resume) => setTimeout(resume, waiting.length ? EXPLAIN_MS : 1000));
  }
}

// What the user does.

function route(focus) {
  const [, name] = /^#node\/(.+)$/.exec(location.hash) || [, ""];
  detail.open(decodeURIComponent(name));
  draw();
  if (name && focus) requestAnimationFrame(() => requestAnimationFrame(() => at("detail").focus()));
}

function keys(event) {
  const typing = /^(INPUT|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && location.hash.length > 1) {
    const link = document.querySelector(`.card[href="${CSS.escape(location.hash)}"], .card[href="${location.hash}"]`);
    location.hash = "";
    if (link) link.focus();
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    at("text").focus();
  } else if (event.key.startsWith("Arrow") && event.target.classList.contains("card")) {
    const links = [...document.querySelectorAll("#nodes li:not([hidden]) .card")];
    const columns = getComputedStyle(at("nodes")).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const next = links[links.indexOf(event.target) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").setAttribute("aria-pressed", `${dark}`);
}

theme(matchMedia("(prefers-color-scheme: dark)").matches);
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
at("download").addEventListener("click", downloadUse);
at("colour").addEventListener("change", () => {
  for (const name of cards.keys()) dirty.add(name);
  draw();
});
for (const id of ["sort", "type", "namespace", "text"]) {
  at(id).addEventListener("input", () => {
    ordered = false;
    draw();
  });
}
addEventListener("hashchange", () => route(true));
addEventListener("keydown", keys);

readUse().then(draw);
nodes.run();
pods.run();
route(false);
readRoom(draw, 0);
explain();
setInterval(draw, 10000); // the time lines go on while nothing changes

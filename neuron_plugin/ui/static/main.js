// The page: two watches, and what is drawn of them. Changes are collected and drawn once a frame.

import { Attention } from "./attention.js";
import { Cards } from "./cards.js";
import { MARKS } from "./draw.js";
import { Drawer } from "./drawer.js";
import { STATES, byName, factsOf, nameOf, when } from "./facts.js";
import { hashOf, html, put } from "./html.js";
import { showHours } from "./hours.js";
import { Live } from "./live.js";
import { Network } from "./network.js";
import { assign, element, hatch, paint } from "./paint.js";
import { drawRoom, readRoom } from "./room.js";
import { SILENCE_MS } from "./stream.js";
import { Use } from "./use.js";
import { Waiting, waitingOf } from "./waiting.js";

const MOST_LARGE = 48; // more nodes than these are shown small
const MOST_IN_LEGEND = 16;
const CHOICES = ["text", "colour", "group", "sort", "size", "type", "namespace"];
const FILTERS = ["text", "type", "namespace"];
const WALL = new URLSearchParams(location.search).has("wall"); // a screen that nobody touches: all nodes, and no more

const at = (id) => document.getElementById(id);
let lost = ""; // why nothing new is known
let due = false;
let recolour = true;
let traced = false; // whether one stands out
let pointed = ""; // the pod under the pointer, or with the focus

const live = new Live(changed, drawConnection);
const { nodes, pods } = live;
const cards = new Cards(at("nodes"), nodes, look);
const drawer = new Drawer(at("drawer"), draw);
const waiting = new Waiting(at("waiting"), draw);
const attention = new Attention(at("attention"), at("numbers"), draw);
const network = new Network(at("network"), draw);
const use = new Use(at("use"));

/** What pods of one colour have in common. */
const KEYS = {
  workload: workloadOf,
  pod: nameOf,
  namespace: ({ namespace }) => namespace,
};

/** What a pod is a part of: its group, or what made it; Deployment and CronJob, which make others for each version and time. */
function workloadOf({ uid, namespace, name }) {
  const { group, controller } = pods.get(uid)?.spec || {};
  return `${namespace}/${group || controller?.replace(/^(?:ReplicaSet\/(.+)-\w+|Job\/(.+)-\d{8})$/, "$1$2").replace(/^\w+\//, "") || name}`;
}

/** How a holder looks: its paint, and whether it was only promised what it has. */
function look(holder) {
  const key = KEYS[at("colour").value];
  const promised = pods.get(holder.uid)?.status.phase === "Promised";
  return { paint: key ? paint(at("colour").value, key(holder)) : { colour: "var(--used)", mark: "", dark: true }, promised };
}

function changed(object, before) {
  if ((object || before).kind === "NeuronPod") podChanged(object, before);
  else touch((object || before).metadata.name);
}

/** A node shows its pods by itself; what a pod adds is that it was only promised its devices, and its workload. */
function podChanged(pod, before) {
  const promised = [before, pod].map((each) => (each ? each.status.promisedNode : ""));
  if (promised[0] !== promised[1]) for (const name of promised) if (name) touch(name);
  if (at("colour").value === "workload") touch((pod || before).spec.nodeName); // the node may have come before its pod
  if (!pod || pod.status.phase === "Terminating") readRoom(draw);
  draw();
}

function touch(name) {
  cards.stale.add(name);
  network.read();
  recolour = true;
  draw();
}

function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    const all = [...nodes.values()].filter((node) => node.spec.devices); // other nodes have nothing to show
    const wait = waitingOf([...pods.values()]);
    const promised = [...pods.values()].filter((pod) => pod.status.phase === "Promised");
    if (recolour) {
      recolour = false;
      const colour = at("colour").value;
      if (KEYS[colour]) assign(colour, new Set(all.flatMap((node) => node.status.holders.map(KEYS[colour]))));
      drawChoices(all);
    }
    const shown = attention.filter(WALL ? all : filtered(all), wait, promised);
    const [size, group, sort] = WALL ? ["auto", "none", "worst"] : ["size", "group", "sort"].map((id) => at(id).value);
    cards.show(shown.map((node) => node.metadata.name), { size: size === "auto" ? (shown.length > MOST_LARGE ? "small" : "large") : size, group, sort });
    at("none").hidden = shown.length > 0;
    const chosen = !WALL && (attention.chosen || FILTERS.some((id) => at(id).value));
    at("shown").textContent = chosen ? `${shown.length} of ${all.length} nodes` : "";
    at("clear").hidden = !chosen;
    attention.draw(all, wait, promised, { heard: live.heard, lost });
    drawLegend(shown);
    waiting.draw(wait, [...pods.values()]);
    network.draw();
    drawRoom(at("room"));
    if (WALL) cards.fit();
    requestAnimationFrame(() => setTimeout(() => use.draw(all))); // it measures the page: once the nodes are painted
    drawer.draw({ nodes, pods, look, order: cards.order, waiting, workloadOf });
    trace();
  });
}

function filtered(all) {
  const [text, type, namespace] = FILTERS.map((id) => at(id).value);
  const word = text.toLowerCase();
  return all.filter(({ metadata, spec, status }) =>
    (!type || spec.instanceType === type) &&
    (!namespace || status.holders.some((each) => each.namespace === namespace)) &&
    (!word || [metadata.name, ...status.holders.map(nameOf)].some((each) => each.toLowerCase().includes(word))));
}

function drawChoices(all) {
  choices(at("type"), all.map((each) => each.spec.instanceType));
  choices(at("namespace"), all.flatMap((each) => each.status.holders.map((holder) => holder.namespace)));
}

function choices(select, values) {
  const wanted = ["", ...[...new Set(values.filter(Boolean))].sort(byName)];
  const chosen = select.value || select.dataset.wanted || "";
  if (chosen && !wanted.includes(chosen)) wanted.push(chosen);
  if (wanted.join() === [...select.options].map((each) => each.value).join()) return;
  select.replaceChildren(...wanted.map((value) => html("option", { value }, value || "all")));
  select.value = chosen;
}

function drawLegend(shown) {
  const colour = at("colour").value;
  const seen = new Set(shown.flatMap((node) => factsOf(node).devices.map((each) => each.health)));
  const square = (name, fill, mark, over) => {
    const box = element("rect", { class: `device ${{ free: "free", "largest free set": "free largest" }[name] || ""}`, x: 1, y: 1, width: 14, height: 14, rx: 3 });
    if (fill) box.style.fill = fill;
    const marked = element("rect", { x: 1, y: 1, width: 14, height: 14, rx: 3, fill: over || "none", class: mark ? `frame ${name}` : "" });
    const marks = mark ? [element("g", { class: `mark ${name.replace(" ", "-")}`, transform: "translate(8 8) scale(.55)" }, element("path", { d: mark }))] : [];
    return html("li", {}, element("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "swatch" }, box, marked, ...marks), name);
  };
  const entries = [square("free"), square("largest free set"), ...STATES.filter((each) => seen.has(each)).map((each) => square(each, "", MARKS[each]))];
  if (shown.some((node) => node.status.idleDevices.length)) entries.push(square("idle", hatch()));
  if (colour === "health") entries.push(square("allocated", "var(--used)"));
  if (["namespace", "workload"].includes(colour)) {
    const keys = [...new Set(shown.flatMap((node) => node.status.holders.map(KEYS[colour])))].sort(byName);
    entries.push(...keys.slice(0, MOST_IN_LEGEND).map((key) => square(key, paint(colour, key).colour, "", paint(colour, key).mark)));
    if (keys.length > MOST_IN_LEGEND) entries.push(html("li", {}, `and ${keys.length - MOST_IN_LEGEND} more`));
  }
  put(at("legend"), ...entries);
}

/** A pod that is pointed at, or whose drawer is open, stands out with its group, wherever they are. */
function trace() {
  const own = pointed || (drawer.kind === "pod" ? drawer.name : "");
  if (!own && !traced) return;
  const parts = document.querySelectorAll(".set, .name");
  const groups = new Map(own ? [...pods.values()].map(({ metadata }) => [nameOf(metadata), workloadOf(metadata)]) : []);
  traced = own && [...parts].some((each) => each.dataset.pod === own);
  document.body.classList.toggle("tracing", Boolean(traced));
  for (const each of parts) {
    const { pod } = each.dataset;
    each.classList.toggle("traced", pod === own);
    each.classList.toggle("mate", Boolean(own) && (pod === own || (groups.has(own) && groups.get(pod) === groups.get(own))));
  }
}

function point({ target, type }) {
  const part = type === "pointerleave" ? null : target.closest?.("[data-pods], .set");
  const name = part ? part.dataset.pod || part.dataset.pods.split(" ")[0] : "";
  if (name === pointed) return;
  pointed = name;
  trace();
}

function drawConnection() {
  if (!live.heard && !live.problem) return; // it says that it is connecting
  const problem = live.problem || (Date.now() - live.heard > SILENCE_MS ? "the controller is silent" : "");
  if (problem !== lost) draw();
  lost = problem;
  document.body.classList.toggle("lost", Boolean(lost));
  const text = lost ? "not live, trying again" : "live";
  if (at("connection").textContent !== text) at("connection").textContent = text;
  if (live.heard) at("as-of").textContent = `as of ${when(live.heard / 1000)}`;
}

// What the user does.

function route(focus) {
  const [, kind, name] = /^#(node|pod)\/(.+)$/.exec(location.hash) || ["", "", ""];
  drawer.open(kind, decodeURIComponent(name));
  draw();
  const shown = location.hash; // it may be closed again before it is drawn, and the focus is elsewhere then
  const focusDrawer = () => { if (location.hash === shown) at("drawer").focus(); };
  if (name && focus) requestAnimationFrame(() => requestAnimationFrame(focusDrawer));
}

function keys(event) {
  const typing = /^(INPUT|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && drawer.name) {
    const link = document.querySelector(`.card[href="${CSS.escape(location.hash)}"], .card[href="${location.hash}"]`);
    location.hash = "";
    if (link) link.focus();
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    at("text").focus();
  } else if (event.key.startsWith("Arrow") && event.target.classList?.contains("card")) {
    const next = cards.next(event.target, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

/** A click on a pod's shape is about the pod; on the rest of a card, about the node. */
function openPod(event) {
  const drawn = event.target.closest?.(".node");
  if (!drawn || event.ctrlKey || event.metaKey) return;
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawn.getScreenCTM().inverse());
  const set = [...drawn.querySelectorAll(".set")].find((each) => each.isPointInFill(point));
  if (!set) return;
  event.preventDefault();
  location.hash = hashOf("pod", set.dataset.pod);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "Light theme" : "Dark theme";
}

// What the user has chosen is remembered where the browser allows it.
const store = {
  get: (key) => { try { return localStorage.getItem(`neuron-${key}`); } catch { return null; } },
  set: (key, value) => { try { localStorage.setItem(`neuron-${key}`, value); } catch { /* it holds until the page is left */ } },
};

theme(store.get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
at("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  store.set("theme", document.documentElement.dataset.theme);
});
for (const id of CHOICES) {
  const field = at(id);
  const chosen = store.get(id);
  field.dataset.wanted = chosen || "";
  if (chosen && (field.tagName === "INPUT" || [...field.options].some((each) => each.value === chosen))) field.value = chosen;
  field.addEventListener("input", () => {
    store.set(id, field.value);
    field.dataset.wanted = field.value;
    if (id === "colour") for (const name of nodes.keys()) touch(name);
    draw();
  });
}
document.body.classList.toggle("wall", WALL);
if (WALL) Object.assign(at("wall"), { href: "./", textContent: "Leave the wall" });
at("view").open = matchMedia("(min-width: 56rem)").matches;
at("clear").addEventListener("click", () => {
  attention.chosen = "";
  for (const id of FILTERS) {
    at(id).value = "";
    at(id).dispatchEvent(new Event("input"));
  }
});
at("download").addEventListener("click", () => use.download());
for (const part of [at("nodes"), at("drawer")]) {
  for (const type of ["pointerover", "pointerleave", "focusin"]) part.addEventListener(type, point);
}
at("nodes").addEventListener("click", openPod);
addEventListener("hashchange", () => route(true));
addEventListener("keydown", keys);
addEventListener("resize", draw);

use.remember().then(draw);
route(false);
readRoom(draw, 0);
network.read(0);
showHours(at("hours"));
waiting.run(() => (drawer.kind === "pod" ? drawer.pod(pods) : null));
setInterval(drawConnection, 1000);
setInterval(draw, 10000); // times go on while nothing changes

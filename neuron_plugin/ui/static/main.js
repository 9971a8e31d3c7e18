// The page: two watches, and what is drawn of them. Changes are collected and drawn once a frame.

import { Detail, html } from "./detail.js";
import { broken, countsOf, element, paint, picture, plain, update } from "./draw.js";
import { downloadUse, drawUse, readUse } from "./use.js";
import { Collection, fetched } from "./watch.js";

const MOST_IN_LEGEND = 16;
const MOST_EXPLAINED = 10;
const EXPLAIN_MS = 5000;

const at = (id) => document.getElementById(id);
const cards = new Map(); // by node name
const dirty = new Set();
const lost = new Map();
let ordered = false;
let due = false;

const nodes = new Collection("neuronnodes", (object, before) => touch((object || before).metadata.name), connection);
const pods = new Collection("neuronpods", () => draw(), connection);
const detail = new Detail(at("detail"));

function touch(name) {
  dirty.add(name);
  draw();
}

function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const name of dirty) drawCard(name);
    if (dirty.size) drawChoices();
    dirty.clear();
    arrange();
    drawNumbers();
    drawLegend();
    drawWaiting();
    drawUse([...cards.values()].map((card) => card.counts));
    detail.draw(nodes.objects.get(detail.name), pods.objects, at("colour").value);
  });
}

function connection(plural, problem) {
  if (problem) lost.set(plural, problem);
  else lost.delete(plural);
  at("connection").classList.toggle("lost", lost.size > 0);
  at("connection").textContent = lost.size ? `not live: ${[...lost.values()][0]}; trying again` : "live";
}

function drawCard(name) {
  const known = nodes.objects.get(name);
  const node = known && known.spec.devices ? known : undefined; // other nodes of the cluster have nothing to show
  let card = cards.get(name);
  const shape = node && `${node.spec.topology} ${node.spec.devices}`;
  if (card && (!node || card.shape !== shape)) {
    card.item.remove();
    cards.delete(name);
    card = undefined;
    ordered = false;
  }
  if (!node) return;
  if (!card) {
    const drawn = picture(node, false);
    const about = html("span");
    const state = html("span", { class: "state" });
    const link = html("a", { class: "card", href: `#node/${encodeURIComponent(name)}` }, html("strong", {}, name), drawn.root, about, state);
    card = { item: html("li", {}, link), link, drawn, about, state, shape };
    cards.set(name, card);
    ordered = false;
  }
  update(card.drawn, node, at("colour").value);
  card.counts = countsOf(node);
  const { free, largest, sick } = card.counts;
  card.about.textContent = `${node.spec.instanceType || "unknown type"}: ${free} of ${node.spec.devices} free` +
    (free ? `, largest set ${largest}` : "");
  card.state.textContent = [node.status.open ? "" : `closed: ${node.status.reason}`, sick ? `${sick} unhealthy` : ""]
    .filter(Boolean).join("; ");
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
  const numbers = {
    nodes: counts.length,
    "nodes closed": counts.length - sum("open"),
    devices: sum("devices"),
    "devices used": sum("used"),
    "devices free": sum("free"),
    "devices unhealthy": sum("sick"),
    "largest free set": Math.max(0, ...counts.filter((each) => each.open).map((each) => each.largest)),
    "pods waiting": waitingPods().length,
  };
  at("numbers").replaceChildren(
    ...Object.entries(numbers).map(([name, number]) => html("div", {}, html("dt", {}, name), html("dd", {}, `${number}`))),
  );
}

function drawLegend() {
  const colour = at("colour").value;
  const entries = [["free", ""], ["unhealthy", broken()], ["missing", "none"]];
  if (colour === "health") entries.push(["used", plain(0)]);
  else {
    const names = new Set();
    for (const node of nodes.objects.values()) {
      for (const each of node.status.holders) names.add(colour === "namespace" ? each.namespace : `${each.namespace}/${each.name}`);
    }
    const sorted = [...names].sort();
    entries.push(...sorted.slice(0, MOST_IN_LEGEND).map((name) => [name, paint(name)]));
    if (sorted.length > MOST_IN_LEGEND) entries.push([`and ${sorted.length - MOST_IN_LEGEND} more`, ""]);
  }
  const key = entries.join();
  if (at("legend").dataset.key === key) return;
  at("legend").dataset.key = key;
  at("legend").replaceChildren(
    ...entries.map(([name, fill]) => {
      const box = element("rect", { class: `device ${name === "missing" ? "missing" : ""}`, x: 1, y: 1, width: 14, height: 14 });
      box.style.fill = fill;
      const swatch = element("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, box);
      return html("li", {}, name.startsWith("and ") ? "" : swatch, name);
    }),
  );
}

// Waiting pods. Why each waits is asked of the extender, for the first few, again and again while they wait.

const reasons = new Map();

const waitingPods = () => [...pods.objects.values()].filter((pod) => pod.status.phase === "Waiting");

function drawWaiting() {
  const waiting = waitingPods().sort((a, b) => b.spec.priority - a.spec.priority || (nameOf(a) < nameOf(b) ? -1 : 1));
  at("waiting").hidden = !waiting.length;
  at("waiting-pods").replaceChildren(
    ...waiting.map((pod) => {
      const asked = pod.spec.containers.map((each) => `${each.name}: ${each.count} ${each.resource}`).join(", ");
      const why = pod.status.problem || reasons.get(pod.metadata.uid);
      return html("li", {}, html("strong", {}, nameOf(pod)), ` asks for ${asked}`, ...(why ? [html("pre", { tabindex: "0" }, why)] : []));
    }),
  );
}

const nameOf = (pod) => `${pod.metadata.namespace}/${pod.metadata.name}`;

async function explain() {
  for (;;) {
    const waiting = waitingPods();
    for (const uid of reasons.keys()) if (!waiting.some((pod) => pod.metadata.uid === uid)) reasons.delete(uid);
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

async function route(focus) {
  const [, name] = /^#node\/(.+)$/.exec(location.hash) || [, ""];
  await detail.open(decodeURIComponent(name));
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

await readUse();
nodes.run();
pods.run();
route(false);
explain();
setInterval(draw, 10000); // the time line goes on while nothing changes

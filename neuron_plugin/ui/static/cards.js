// One card for each node that is shown: a picture with its name and free sizes, or of many nodes picture and name alone.

import { picture, update } from "./draw.js";
import { byName, described, factsOf, plural, sizesOf, wrongWith } from "./facts.js";
import { hashOf, html, put } from "./html.js";

const FULLNESS = ["full", "more than half allocated", "half allocated or less", "empty"];

function fullnessOf({ used, count }) {
  if (!used) return "empty";
  return used === count ? "full" : used > count / 2 ? "more than half allocated" : "half allocated or less";
}

const MANY = 250; // of so many, 500 fit on one screen
const ATTENTION = "Need attention";
const [LEAST_TILE, MOST_TILE] = [24, 480]; // on a wall
const AT_ONCE = 500; // small pictures that are complete from the start: to see which are in sight costs another frame

const ORDERS = {
  name: () => 0,
  worst: (a, b) => factsOf(b).worst - factsOf(a).worst,
  use: (a, b) => factsOf(b).used - factsOf(a).used,
};

export class Cards {
  /** `nodes` are the objects of the API by name; `look` is as for `update` of a picture. */
  constructor(container, nodes, look) {
    this.container = container;
    this.nodes = nodes;
    this.look = look;
    this.cards = new Map(); // by name
    this.stale = new Set(); // names
    this.order = []; // the names that are shown
    this.size = "";
    this.arranged = "";
    // A picture is completed when its card comes near to what the window shows.
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const card = this.cards.get(target.dataset.node);
        if (!isIntersecting || card?.item !== target || card.complete) continue;
        card.complete = true;
        update(card.drawn, this.nodes.get(target.dataset.node), this.look, true);
      }
    }, { rootMargin: "100%" });
  }

  /** Show these nodes, `size` large or small, by `group` and `sort` as the page offers them. */
  show(names, { size, group, sort }) {
    if (size !== this.size) {
      this.observer.disconnect();
      this.cards.clear();
      this.size = size;
      this.arranged = "";
      this.container.dataset.size = size;
    }
    const shown = new Set(names);
    for (const name of [...this.cards.keys()]) if (!shown.has(name)) this.forget(name);
    for (const name of names) this.draw(name);
    this.arrange(names, group, sort);
  }

  forget(name) {
    this.arranged = "";
    this.observer.unobserve(this.cards.get(name).item);
    this.cards.delete(name);
  }

  draw(name) {
    const node = this.nodes.get(name);
    const shape = `${node.spec.topology} ${node.spec.devices}`;
    if (this.cards.has(name) && this.cards.get(name).shape !== shape) this.forget(name);
    const card = this.cards.get(name) || this.make(name, node, shape);
    if (!this.stale.has(name) && card.drawnOnce) return;
    this.stale.delete(name);
    card.drawnOnce = true;
    const { devices, free, badges, usedBroken } = factsOf(node);
    update(card.drawn, node, this.look, card.complete);
    card.link.className = ["card", this.size, badges.some((each) => each !== "reserved") && "closed", usedBroken && "hurt"].filter(Boolean).join(" ");
    if (this.size === "small") {
      card.link.title = `${name}, ${node.spec.instanceType || "unknown type"}: ${described(node)}`;
      return;
    }
    const why = [node.status.reason, ...node.status.details].join("; ");
    put(card.badges, ...badges.map((each) => html("span", { class: `badge ${each}`, title: each === "reserved" ? "for waiting pods" : why }, each)));
    const sizes = sizesOf(node).map((count) => {
      const number = node.status.open ? node.status.freeSets[count] : 0;
      return html("span", { class: `size${number ? " some" : ""}`, title: `${plural(number, "free set")} of ${plural(count, "device")}` }, `${count}`);
    });
    card.about.textContent = node.status.open ? `${free} free` : "";
    put(card.sizes, ...sizes);
    card.type.textContent = node.spec.instanceType;
    card.state.textContent = wrongWith(factsOf(node));
    card.state.className = `state ${devices.some((each) => each.broken) ? "bad" : ""}`;
    card.state.hidden = !card.state.textContent;
  }

  make(name, node, shape) {
    const drawn = picture(node, this.size);
    const [badges, type, about, sizes, state, short] = ["badges", "type", "about", "sizes", "state", "short"].map((each) => html("span", { class: each }));
    const parts = this.size === "small" ? [drawn.root, short]
      : [html("span", { class: "head" }, html("strong", {}, name), badges, about, type), drawn.root, sizes, state];
    const link = html("a", { href: hashOf("node", name) }, ...parts);
    const item = html("li", { "data-node": name }, link);
    const complete = this.size === "small" && this.cards.size < AT_ONCE;
    const card = { item, link, drawn, badges, type, about, sizes, state, short, shape, complete, drawnOnce: false };
    this.cards.set(name, card);
    if (!complete) this.observer.observe(item);
    return card;
  }

  /** The list is touched only when its order has changed. The worst come first, whatever the groups. */
  arrange(names, group, sort) {
    const at = (name) => this.nodes.get(name);
    const groupOf = { none: () => "", type: (node) => node.spec.instanceType || "unknown type", fullness: (node) => fullnessOf(factsOf(node)) }[group];
    const titleOf = (node) => (group !== "none" && sort === "worst" && factsOf(node).worst ? ATTENTION : groupOf(node));
    const sorted = [...names].sort((a, b) => ORDERS[sort](at(a), at(b)) || byName(a, b));
    const groups = [...Map.groupBy(sorted, (name) => titleOf(at(name)))];
    groups.sort(([a], [b]) => (b === ATTENTION) - (a === ATTENTION) || FULLNESS.indexOf(a) - FULLNESS.indexOf(b) || byName(a, b));
    this.container.style.setProperty("--tile", names.length > MANY ? "30px" : "46px");
    this.order = groups.flatMap(([, members]) => members);
    const arranged = JSON.stringify(groups);
    if (arranged !== this.arranged) {
      this.arranged = arranged;
      const [start, end] = alike(names);
      const most = names.length > MANY ? 6 : 9; // letters; names differ at their end
      for (const [name, { short }] of this.cards) {
        const own = name.slice(start, name.length - end) || name;
        short.textContent = own.length > most ? `…${own.slice(1 - most)}` : own;
      }
      const focused = document.activeElement;
      this.container.replaceChildren(...groups.map(([title, members]) => {
        const list = html("ul", { "aria-label": title || "Nodes" }, ...members.map((name) => this.cards.get(name).item));
        const section = html("section", {}, ...(title ? [html("h3", {}, title, html("span"))] : []), list);
        section.style.setProperty("--cards", members.length);
        section.classList.toggle("typed", group === "type" && title !== ATTENTION);
        return section;
      }));
      if (this.container.contains(focused)) focused.focus({ preventScroll: true });
    }
    groups.forEach(([title, members], place) => {
      if (title) this.container.children[place].querySelector("h3 span").textContent = aboutGroup(members.map(at));
    });
  }

  /** Make the cards as large as they can be while nothing is below the screen. */
  fit() {
    let [least, most] = [LEAST_TILE, MOST_TILE];
    while (most - least > 1) {
      const tile = (least + most) / 2;
      this.container.style.setProperty("--tile", `${tile}px`);
      if (document.documentElement.scrollHeight <= innerHeight) least = tile;
      else most = tile;
    }
    this.container.style.setProperty("--tile", `${least}px`);
  }

  /** The card next to one, as the arrow keys go: the nearest in that direction. */
  next(from, key) {
    const here = from.getBoundingClientRect();
    const [along, across, sign] = { ArrowLeft: ["x", "y", -1], ArrowRight: ["x", "y", 1], ArrowUp: ["y", "x", -1], ArrowDown: ["y", "x", 1] }[key];
    let [best, least] = [null, Infinity];
    for (const { link } of this.cards.values()) {
      const there = link.getBoundingClientRect();
      const ahead = sign * (there[along] - here[along]);
      const aside = Math.abs(there[across] - here[across]);
      if (ahead > 1 && (along === "y" || aside < 1) && ahead + 2 * aside < least) [best, least] = [link, ahead + 2 * aside];
    }
    return best;
  }
}

function aboutGroup(nodes) {
  const facts = nodes.map(factsOf);
  const sum = (key) => facts.reduce((total, each) => total + each[key], 0);
  return `${plural(nodes.length, "node")} · ${sum("free")} of ${sum("count")} free`;
}

/** How many letters all names begin and end with, whole words alone: they need not be said of each. */
function alike(names) {
  const [first = "", ...others] = names;
  const parts = (text) => text.split(/(?<=[-.])|(?=[-.])/);
  const common = (from) => {
    const words = from(parts(first));
    let count = others.length ? words.length - 1 : 0;
    for (const name of others) {
      const here = from(parts(name));
      for (let place = 0; place < count; place++) if (here[place] !== words[place]) count = place;
      count = Math.min(count, here.length - 1);
    }
    return words.slice(0, count).join("").length;
  };
  return [common((words) => words), common((words) => words.reverse())];
}

// What needs attention, as one sentence, and the cluster in numbers. Each part of both is a filter of the nodes.

import { STATES, factsOf, plural, when } from "./facts.js";
import { html, put } from "./html.js";

const MOST_NAMES = 2;

/** Which nodes a filter shows, by its key. */
const TESTS = {
  "on broken devices": ({ usedBroken }) => usedBroken,
  waiting: (_, node, waiting) => waiting.some(({ spec }) => spec.containers.every((each) => couldTake(node, each))),
  promised: (_, node, __, promised) => promised.some(({ status }) => status.promisedNode === node.metadata.name),
  "on closed nodes": ({ unused }) => unused["on closed nodes"],
  broken: ({ unused }) => unused.unhealthy + unused.missing,
  idle: ({ idle }) => idle,
  allocated: ({ used }) => used,
  free: ({ free }) => free,
  ...Object.fromEntries(["cordoned", "silent", "closed"].map((badge) => [badge, ({ badges }) => badges.includes(badge)])),
  ...Object.fromEntries(STATES.map((state) => [state, ({ devices }) => devices.some((each) => each.health === state)])),
};

/** Whether a node's machine has sets of this size, free or not. */
const couldTake = ({ spec, status }, { resource, count }) =>
  (resource.endsWith("/neuroncore") ? count <= spec.devices * spec.coresPerDevice : `${count}` in status.freeSets);

export class Attention {
  /** `sentence` and `numbers` are elements; `changed` is called when the user has chosen another filter. */
  constructor(sentence, numbers, changed) {
    this.sentence = sentence;
    this.numbers = numbers;
    this.chosen = "";
    for (const part of [sentence, numbers]) {
      part.addEventListener("click", ({ target }) => {
        const { filter } = target.closest("button")?.dataset || {};
        if (!filter) return;
        this.chosen = this.chosen === filter ? "" : filter;
        changed();
      });
    }
  }

  /** Those of these nodes that the chosen filter shows. */
  filter(nodes, waiting, promised) {
    const test = TESTS[this.chosen];
    return test ? nodes.filter((node) => test(factsOf(node), node, waiting, promised)) : nodes;
  }

  /** `live` says whether all this is still so: nothing is calm while nothing is known. */
  draw(nodes, waiting, promised, live) {
    const facts = nodes.map(factsOf);
    const sum = (count) => facts.reduce((total, each) => total + count(each), 0);
    this.drawSentence(nodes, facts, waiting, sum, live);
    this.drawNumbers(nodes, facts, waiting, promised, sum);
  }

  button(filter, tone, ...text) {
    return html("button", { type: "button", class: tone, "data-filter": filter, "aria-pressed": `${this.chosen === filter}` }, ...text);
  }

  drawSentence(nodes, facts, waiting, sum, { heard, lost }) {
    const parts = lost ? [html("span", { class: "bad" }, `Nothing is known ${heard ? `since ${when(heard / 1000)}` : "yet"}: ${lost}.`)] : [];
    const onBroken = sum(({ brokenHolders }) => brokenHolders);
    if (onBroken) parts.push(this.button("on broken devices", "bad", `${plural(onBroken, "pod")} on broken devices`));
    if (waiting.length) parts.push(this.button("waiting", "warn", `${plural(waiting.length, "pod")} ${waiting.length === 1 ? "waits" : "wait"}`));
    for (const badge of ["silent", "closed", "cordoned"]) {
      const names = nodes.filter((_, place) => facts[place].badges.includes(badge)).map((node) => node.metadata.name);
      const who = names.length > MOST_NAMES ? plural(names.length, "node") : names.join(" and ");
      if (names.length) parts.push(this.button(badge, badge === "cordoned" ? "" : "bad", `${who} ${badge}`));
    }
    const broken = sum(({ unused }) => unused.unhealthy + unused.missing);
    if (broken) parts.push(this.button("broken", "warn", `${plural(broken, "broken device")} without a pod`));
    const idle = sum((each) => each.idle);
    if (idle) parts.push(this.button("idle", "", `${plural(idle, "device")} idle`));
    const calm = nodes.length ? "Nothing needs attention." : heard ? "No node with Neuron devices is known." : "";
    put(this.sentence, ...(parts.length ? parts : [html("span", {}, calm)]));
  }

  drawNumbers(nodes, facts, waiting, promised, sum) {
    const largest = Math.max(0, ...nodes.map((node) => (node.status.open ? node.status.largestFreeSet.length : 0)));
    const chips = [
      ["nodes", nodes.length], ["devices", sum(({ count }) => count)],
      ["allocated", sum(({ used }) => used), "used", "allocated"], ["free", sum(({ free }) => free), "free", "free"],
      ["largest free set", largest, "free"],
      ["allocated and broken", sum(({ usedBroken }) => usedBroken), "bad", "on broken devices"],
      ["idle", sum(({ idle }) => idle), "calm", "idle"],
      ...STATES.map((state) => [state, sum(({ states }) => states[state]), state === "reserved" ? "calm" : "warn", state]),
      ["free on closed nodes", sum(({ unused }) => unused["on closed nodes"]), "warn", "on closed nodes"],
      ["waiting", waiting.length, "warn", "waiting"], ["promised", promised.length, "calm", "promised"],
    ];
    put(this.numbers, ...chips.filter(([, number]) => number).map(([name, number, tone = "", filter = ""]) => {
      const text = [html("b", {}, `${number}`), ` ${name}`];
      return html("li", {}, filter ? this.button(filter, tone, ...text) : html("span", { class: tone }, ...text));
    }));
  }
}

// Use over time, in steps: what the extender remembers, and from then on what the watch brings. A reading where one points.

import { factsOf, secondsOf, when } from "./facts.js";
import { html, put } from "./html.js";
import { element } from "./paint.js";
import { fetched } from "./stream.js";

// Name, class, and how many devices of a sample [time, used, free, unlinked, other, broken]: from the bottom up.
const SERIES = [
  ["allocated and broken", "broken", (each) => each[5]],
  ["allocated", "used", (each) => each[1]],
  ["free, linked", "free", (each) => each[2]],
  ["free, not linked", "unlinked", (each) => each[3]],
  ["not available", "off", (each) => each[4]],
];
const HEIGHT = 180;
const LEFT = 36;
const BOTTOM = 22;
const TOP = 8;
const LEAST_SEEN = 4; // what is broken and held is seen, however little it is
const STEPS = [1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400];
const LEAST_SECONDS = 60;
const MOST_SAMPLES = 1000;

export class Use {
  constructor(section) {
    this.section = section;
    [this.readings, this.chart] = section.querySelectorAll("div");
    this.samples = [];
    this.pauseSeconds = 30;
    this.shown = [];
    this.pointed = -1; // the sample that is read; else the last one
    this.chart.addEventListener("pointermove", ({ clientX }) => this.point(clientX));
    this.chart.addEventListener("pointerleave", () => this.read(-1));
    this.chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const from = this.pointed < 0 ? this.shown.length - 1 : this.pointed;
      this.read(Math.min(Math.max(from + step, 0), this.shown.length - 1));
    });
  }

  async remember() {
    try {
      const { seconds, samples } = await (await fetched("use.json")).json();
      this.pauseSeconds = seconds;
      this.samples = samples.map(([at, ...counts]) => [secondsOf(at), ...counts]);
    } catch {
      // The live numbers are shown all the same.
    }
  }

  draw(nodes) {
    this.section.hidden = !nodes.length;
    if (!nodes.length) return;
    const now = useNow(nodes.map(factsOf));
    const last = this.samples[this.samples.length - 1];
    if (!last || now[0] - last[0] > this.pauseSeconds) this.samples.push(now);
    this.samples.splice(0, this.samples.length - MOST_SAMPLES);
    this.shown = [...this.samples, now];
    this.section.querySelector("small").textContent = `known since ${when(this.shown[0][0])}`;
    const width = Math.max(280, this.chart.clientWidth);
    const [start, end] = [Math.min(this.shown[0][0], now[0] - LEAST_SECONDS), now[0]];
    const most = Math.max(1, ...this.shown.map((each) => each.slice(1).reduce((total, count) => total + count)));
    this.x = (at) => LEFT + ((width - LEFT - 2) * (at - start)) / (end - start);
    const y = (count) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * count) / most;
    const root = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", tabindex: 0, xmlns: "http://www.w3.org/2000/svg" });
    root.setAttribute("aria-label", `Devices now: ${SERIES.map(([name, , count]) => `${count(now)} ${name}`).join("; ")}`);
    const below = this.shown.map(() => 0);
    for (const [name, , count] of SERIES) {
      const least = name === "allocated and broken" ? LEAST_SEEN : 0;
      const lower = this.shown.map((_, place) => y(below[place]));
      this.shown.forEach((each, place) => (below[place] += count(each)));
      const upper = this.shown.map((each, place) => (count(each) ? Math.min(y(below[place]), lower[place] - least) : lower[place]));
      root.prepend(element("path", { class: SERIES.find(([each]) => each === name)[1], d: this.steps(upper, lower) }));
    }
    root.append(...ticksOf(most, 4, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]).flatMap((count) => [
      element("path", { class: "grid", d: `M${LEFT} ${y(count)}H${width}` }),
      text(LEFT - 6, y(count) + 4, "end", `${count}`),
    ]));
    const step = STEPS.find((each) => (end - start) / each <= Math.max(2, width / 110)) || STEPS[STEPS.length - 1];
    for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
      const near = this.x(at) < LEFT + 18 ? "start" : this.x(at) > width - 20 ? "end" : "middle";
      root.append(element("path", { class: "tick", d: `M${this.x(at)} ${HEIGHT - BOTTOM}v4` }), text(this.x(at), HEIGHT - 5, near, step < 60 ? when(at) : when(at).slice(-8, -3)));
    }
    this.pointer = element("path", { class: "pointer" });
    root.append(this.pointer);
    const focused = this.chart.contains(document.activeElement);
    this.chart.replaceChildren(root);
    if (focused) root.focus({ preventScroll: true });
    this.read(this.pointed);
  }

  /** An area between two lines that go level from one sample to the next. */
  steps(upper, lower) {
    const xs = this.shown.map(([at]) => this.x(at));
    const there = upper.map((height, place) => `${place ? `H${xs[place]}V` : `M${xs[0]} `}${height}`).join("");
    const back = lower.map((height, place) => `${place < lower.length - 1 ? `H${xs[place + 1]}` : ""}V${height}`).reverse().join("");
    return `${there}${back}H${xs[0]}Z`;
  }

  point(clientX) {
    const at = clientX - this.chart.getBoundingClientRect().left;
    const later = this.shown.findIndex((each) => this.x(each[0]) > at);
    this.read(later < 0 ? this.shown.length - 1 : Math.max(0, later - 1));
  }

  /** Say what was at a sample: the last one for -1. */
  read(place) {
    if (!this.shown.length) return;
    this.pointed = place;
    const sample = this.shown[place] || this.shown[this.shown.length - 1];
    this.pointer.setAttribute("d", place < 0 ? "" : `M${this.x(sample[0])} ${TOP}V${HEIGHT - BOTTOM}`);
    const parts = SERIES.map(([name, look, count]) =>
      html("span", {}, html("i", { class: `swatch ${look}` }), `${name} `, html("b", {}, `${count(sample)}`)));
    put(this.readings, html("b", {}, place < 0 ? "now" : when(sample[0])), ...parts);
  }

  download() {
    const drawn = this.chart.querySelector("svg");
    const copy = drawn.cloneNode(true);
    const shown = [...drawn.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((each, place) => {
      const style = getComputedStyle(shown[place]);
      for (const key of ["fill", "stroke", "stroke-width", "font"]) each.style.setProperty(key, style.getPropertyValue(key));
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.download = "neuron-use.svg";
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/** Counts as in use.json, of this moment. */
function useNow(facts) {
  const counts = [Math.floor(Date.now() / 1000), 0, 0, 0, 0, 0];
  for (const { count, used, usedBroken, free, largest } of facts) {
    counts[1] += used - usedBroken;
    counts[2] += largest;
    counts[3] += free - largest;
    counts[4] += count - used - free;
    counts[5] += usedBroken;
  }
  return counts;
}

/** 0 and at most so many round numbers up to `most`. */
function ticksOf(most, number, steps) {
  const step = steps.find((each) => most / each <= number) || steps[steps.length - 1];
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
}

const text = (x, y, anchor, words) => element("text", { x, y, "text-anchor": anchor }, words);

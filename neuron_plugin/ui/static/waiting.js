// The pods that wait, a line each: how long, how urgent, and what they can expect. Why is asked of those that are open.

import { ageOf, asks, nameOf, ranges } from "./facts.js";
import { html, link, put, table } from "./html.js";
import { fetched } from "./stream.js";

const ASK_MS = 5000;
const MOST_LISTED = 100;
const MOST_NAMES = 3;
const MOST_BLOCKED = 3;

/** In the order in which they are placed: those of high priority first, then the older. */
export const waitingOf = (pods) => pods.filter((pod) => pod.status.phase === "Waiting").sort((a, b) =>
  b.spec.priority - a.spec.priority || a.spec.created - b.spec.created || (nameOf(a.metadata) < nameOf(b.metadata) ? -1 : 1));

/** What a pod can expect, in a word or three, and how bad that is. */
function verdictOf(pod, prospect) {
  if (pod.status.problem) return ["never", "bad"];
  if (!prospect) return ["...", ""];
  if (prospect.moves?.length) return ["a move would help", "warn"];
  return { fits: ["fits", "free"], pieces: ["no linked room", "warn"], short: ["no room", "warn"], never: ["never", "bad"] }[prospect.standing] || ["not judged", ""];
}

export class Waiting {
  /** `changed` is called when there is something more to draw. */
  constructor(section, changed) {
    this.section = section;
    this.list = section.querySelector("ul");
    this.changed = changed;
    this.prospects = new Map(); // by name
    this.reasons = new Map(); // explanations by name
    this.opened = new Set(); // by UID, what the user wants to read
    this.pods = [];
  }

  draw(waiting) {
    this.pods = waiting;
    this.section.hidden = !waiting.length;
    const now = Date.now() / 1000;
    const items = waiting.slice(0, MOST_LISTED).map((pod) => this.line(pod, now));
    if (waiting.length > MOST_LISTED) items.push(html("li", {}, `and ${waiting.length - MOST_LISTED} more`));
    put(this.list, ...items);
  }

  line(pod, now) {
    const { metadata: { uid }, spec } = pod;
    const name = nameOf(pod.metadata);
    const [verdict, tone] = verdictOf(pod, this.prospects.get(name));
    const facts = [spec.created && ageOf(now - spec.created), spec.priority && `priority ${spec.priority}`].filter(Boolean);
    const about = html("summary", {}, html("strong", {}, name), html("small", {}, facts.join(", ")), html("span", { class: `verdict ${tone}` }, verdict));
    const part = html("details", { "data-uid": uid }, about);
    part.open = this.opened.has(uid);
    if (part.open) part.append(...this.reasonOf(pod), link("pod", name, "All about this pod"));
    about.addEventListener("click", (event) => {
      event.preventDefault();
      if (!this.opened.delete(uid)) this.opened.add(uid);
      this.askWhy(pod);
      this.changed();
    });
    return html("li", {}, part);
  }

  /** Why a pod waits, as far as it is known: some lines and a small table. */
  reasonOf(pod) {
    const name = nameOf(pod.metadata);
    const { gated, releasedPlainly, problem } = pod.status;
    const how = gated ? " (gated)" : releasedPlainly ? " (released without a place)" : "";
    const lines = [`asks for ${asks(pod.spec)}${how}`, problem];
    const prospect = this.prospects.get(name);
    const moves = prospect?.moves || [];
    if (moves.length) lines.push(`${moves.map((each) => `${each.pod} to ${each.target}`).join(", ")}: would open ${prospect.ids} of ${prospect.node}`);
    const why = this.reasons.get(name);
    if (why) lines.push(why.note === problem ? "" : why.note, why.gate);
    else if (!problem) lines.push("...");
    return [...lines.filter(Boolean).map((each) => html("p", {}, each)), ...(why?.nodes.length ? [nodesTable(why.nodes)] : [])];
  }

  async askWhy(pod) {
    const name = nameOf(pod.metadata);
    try {
      this.reasons.set(name, await (await fetched(`../explain/${name}?format=json`)).json());
      this.changed();
    } catch {
      // Gone meanwhile, or the extender is: the watch will say so.
    }
  }

  /** Ask again and again while pods wait; `also` gives a pod that is shown elsewhere. */
  async run(also) {
    for (;;) {
      const names = new Set(this.pods.map((pod) => nameOf(pod.metadata)));
      for (const kept of [this.prospects, this.reasons]) for (const name of kept.keys()) if (!names.has(name)) kept.delete(name);
      if (names.size && !document.hidden) {
        try {
          const { waiting, reasons } = await (await fetched("waiting.json")).json();
          this.prospects = new Map([...Object.entries(reasons).map(([name, reason]) => [name, { reason }]), ...waiting.map((each) => [each.pod, each])]);
          this.changed();
        } catch {
          // The last ones stay.
        }
        for (const pod of this.pods) if (this.opened.has(pod.metadata.uid) || pod === also()) await this.askWhy(pod);
      }
      await new Promise((resume) => setTimeout(resume, names.size ? ASK_MS : ASK_MS / 5));
    }
  }
}

/** Nodes that give the same answer stand in one row, those with the least in the way first. */
function nodesTable(nodes) {
  const alike = Map.groupBy(nodes, (each) => JSON.stringify([each.fits, each.reason, each.sets, each.objections]));
  const weight = ({ blocked: [first] }) => (first ? 100 * first.unhealthyDevices.length + first.holders.length : 0);
  const rows = [...alike.values()].map((members) => {
    members.sort((a, b) => weight(a) - weight(b));
    const [{ fits, reason, sets, objections, details, blocked }] = members;
    const names = members.slice(0, MOST_NAMES).map((each) => each.node).join(", ");
    const more = members.length > MOST_NAMES ? ` and ${members.length - MOST_NAMES} more` : "";
    const answer = [fits ? `fits: ${sets.join("; ")}` : reason, ...objections, ...details].filter(Boolean).join("; ");
    const inTheWay = blocked.slice(0, MOST_BLOCKED).map((each) => {
      const why = [...each.holders, each.unhealthyDevices.length && `broken ${ranges(each.unhealthyDevices)}`, each.disabledDevices.length && `disabled ${ranges(each.disabledDevices)}`];
      return `${each.ids}: ${why.filter(Boolean).join(", ") || "free, but not all at once"}`;
    });
    return [names + more, answer, inTheWay.join("; ")];
  });
  return table("Nodes", ["Node", "Answer", "In the way"], rows);
}

// The pods that wait, a line each: how long, how urgent, and what they can expect. Why is asked of those that are open.

import { ageOf, asks, nameOf, plural, ranges, secondsOf } from "./facts.js";
import { html, link, put, table } from "./html.js";
import { fetched } from "./stream.js";

const ASK_MS = 5000;
const MOST_LISTED = 100;
const MOST_NAMES = 3;
const MOST_BLOCKED = 3;

/** In the order in which they are placed: those of high priority first, then the older. */
export const waitingOf = (pods) => pods.filter((pod) => pod.status.phase === "Waiting").sort((a, b) =>
  b.spec.priority - a.spec.priority || secondsOf(a.spec.created) - secondsOf(b.spec.created) || (nameOf(a.metadata) < nameOf(b.metadata) ? -1 : 1));

/** The lines: a pod alone, or the pods of a group that wait, beside all pods of the group. */
function linesOf(waiting, pods) {
  const groupOf = ({ metadata, spec }) => (spec.group ? `${metadata.namespace}/${spec.group}` : "");
  const groups = Map.groupBy(pods, groupOf);
  return [...Map.groupBy(waiting, (pod) => groupOf(pod) || pod.metadata.uid)].map(([key, members]) => {
    const group = groupOf(members[0]);
    return { key, members, name: group || nameOf(members[0].metadata), group: group && groups.get(group) };
  });
}

const VERDICTS = {
  fits: ["fits", "free"], links: ["no linked room", "warn"], group: ["waits for its group", "warn"], short: ["no room", "warn"],
  rules: ["no node is allowed", "warn"], gate: ["another gate", "warn"], unknown: ["not judged", "warn"],
  nobody: ["no scheduler", "bad"], never: ["never", "bad"],
};
const WORST = Object.keys(VERDICTS);
const NO_ROOM = new Set(["links", "short", "rules"]);

/** The set that a move would open: "devices 0-3". */
function setOf({ unit, devices, cores }) {
  const ids = unit === "device" ? devices : cores;
  return `${unit}${ids.length === 1 ? "" : "s"} ${ranges(ids)}`;
}

/** What a pod can expect, in a word or three, and how bad that is. */
function verdictOf(pod, prospect) {
  if (pod.status.problem) return ["never", "bad"];
  if (!prospect) return ["...", ""];
  if (prospect.moves?.length) return ["a move would help", "warn"];
  return VERDICTS[prospect.standing] || ["not judged", ""];
}

export class Waiting {
  /** `changed` is called when there is something more to draw. */
  constructor(section, changed) {
    this.section = section;
    this.list = section.querySelector("ul");
    this.changed = changed;
    this.prospects = new Map(); // by name
    this.reasons = new Map(); // explanations by name
    this.opened = new Set(); // keys of the lines that the user wants to read
    this.lines = [];
  }

  draw(waiting, pods) {
    this.lines = linesOf(waiting, pods);
    this.section.hidden = !waiting.length;
    const now = Date.now() / 1000;
    const items = this.lines.slice(0, MOST_LISTED).map((line) => this.line(line, now));
    if (this.lines.length > MOST_LISTED) items.push(html("li", {}, `and ${this.lines.length - MOST_LISTED} more`));
    put(this.list, ...items);
  }

  prospectOf(pod) {
    return this.prospects.get(nameOf(pod.metadata));
  }

  /** The pod of a line that is worst off: what keeps it keeps its group. */
  leadOf({ members }) {
    const rank = (pod) => WORST.indexOf(this.prospectOf(pod)?.standing);
    return members.reduce((worst, each) => (rank(each) > rank(worst) ? each : worst));
  }

  line(line, now) {
    const { key, name, members, group } = line;
    const lead = this.leadOf(line);
    const { spec: { created, priority } } = lead;
    const prospect = this.prospectOf(lead);
    const placed = group && `${group.filter(({ status }) => status.phase !== "Waiting").length} of ${group.length} placed`;
    const facts = [placed, group && this.needsOf(members, prospect), created && ageOf(now - secondsOf(created)), priority && `priority ${priority}`].filter(Boolean);
    const [verdict, tone] = verdictOf(lead, prospect);
    const about = html("summary", { title: (group && prospect?.reason) || "" }, html("strong", {}, name), html("small", {}, facts.join(", ")), html("span", { class: `verdict ${tone}` }, verdict));
    const part = html("details", { "data-key": key }, about);
    part.open = this.opened.has(key);
    const links = group ? members.map((each) => link("pod", nameOf(each.metadata))) : [link("pod", name, "All about this pod")];
    if (part.open) part.append(...this.reasonOf(lead), html("p", {}, ...links.flatMap((each) => [each, " "])));
    about.addEventListener("click", (event) => {
      event.preventDefault();
      if (!this.opened.delete(key)) this.opened.add(key);
      this.askWhy(lead);
      this.changed();
    });
    return html("li", {}, part);
  }

  /** What keeps a group, in some words; all of it is said of the line that is open, and is its title. */
  needsOf(members, prospect) {
    const lacks = prospect?.lacks || members.filter((pod) => NO_ROOM.has(this.prospectOf(pod)?.standing)).length;
    const [first, ...others] = prospect?.inTheWay || [];
    const more = others.length ? ` and ${others.length} more are in the way` : " is in the way";
    return lacks > 0 && `needs room for ${lacks} more${first ? `: ${first}${more}` : ""}`;
  }

  /** Why a pod waits, as far as it is known: some lines and a small table. */
  reasonOf(pod) {
    const name = nameOf(pod.metadata);
    const { gated, releasedPlainly, problem } = pod.status;
    const how = gated ? " (gated)" : releasedPlainly ? " (released without a place)" : "";
    const prospect = this.prospects.get(name);
    const moves = prospect?.moves || [];
    const why = this.reasons.get(name);
    const { sentence, inTheWay, helps, move, gate } = why || {};
    const lines = [
      `asks for ${asks(pod.spec)}${how}`, problem,
      moves.length && `${moves.map((each) => `${each.pod} to ${each.target}`).join(", ")}: would open ${setOf(prospect)} of ${prospect.node}`,
      ...(why ? [sentence || prospect?.reason, inTheWay.length && `in the way: ${inTheWay.join(", ")}`, helps, !moves.length && move, gate] : [!problem && "..."]),
    ];
    const tables = [...(why?.domains.length ? [domainsTable(why)] : []), ...(why?.nodes.length ? [nodesTable(why.nodes)] : [])];
    return [...new Set(lines.filter(Boolean))].map((each) => html("p", {}, each)).concat(tables);
  }

  async askWhy(pod) {
    const name = nameOf(pod.metadata);
    try {
      this.reasons.set(name, await (await fetched(`../explain/${name}?format=json`)).json());
      this.changed();
    } catch {
      // Gone meanwhile, or the controller is: the stream will say so.
    }
  }

  /** Ask again and again while pods wait; `also` gives a pod that is shown elsewhere. */
  async run(also) {
    for (;;) {
      const names = new Set(this.lines.flatMap(({ members }) => members.map((pod) => nameOf(pod.metadata))));
      for (const kept of [this.prospects, this.reasons]) for (const name of kept.keys()) if (!names.has(name)) kept.delete(name);
      if (names.size && !document.hidden) {
        try {
          const { waiting } = await (await fetched("waiting.json")).json();
          this.prospects = new Map(waiting.map((each) => [each.pod, each]));
          this.changed();
        } catch {
          // The last ones stay.
        }
        const open = this.lines.filter(({ key }) => this.opened.has(key)).map((line) => this.leadOf(line));
        for (const pod of new Set([...open, also()])) if (pod?.status.phase === "Waiting") await this.askWhy(pod);
      }
      await new Promise((resume) => setTimeout(resume, names.size ? ASK_MS : ASK_MS / 5));
    }
  }
}

/** The domains that matter to a pod's group; those with less free are counted. */
function domainsTable({ domains, moreDomains }) {
  const rows = domains.map(({ level, name, nodes, whole, freeDevices, devices, groupPods, spares }) =>
    [`${level.split("/").pop()} ${name}`, `${whole} of ${nodes}`, `${freeDevices} of ${devices}`, [groupPods && plural(groupPods, "pod"), spares && plural(spares, "spare node")].filter(Boolean).join(", ")]);
  if (moreDomains) rows.push([`${moreDomains} more`, "", "", ""]);
  return table("Network", ["Domain", "Whole nodes", "Free devices", "Of its group"], rows);
}

const setText = ({ unit, ids }) => `${unit}${ids.length > 1 ? "s" : ""} ${ranges(ids)}`;

/** Nodes that give the same answer stand in one row; they come with the least in the way first, with numbers of their own. */
function nodesTable(nodes) {
  const alike = Map.groupBy(nodes, (each) => JSON.stringify([each.fits, each.blocked.length > 0, each.reasons.slice(each.blocked.length ? 1 : 0), each.sets]));
  const rows = [...alike.values()].map((members) => {
    const [{ fits, reasons, sets, details, blocked }] = members;
    const names = members.slice(0, MOST_NAMES).map((each) => each.node).join(", ");
    const more = members.length > MOST_NAMES ? ` and ${members.length - MOST_NAMES} more` : "";
    const free = sets.map((each) => `${each.container}: ${setText(each)}`).join("; ");
    const answer = [fits ? `fits: ${free}` : free && `has ${free} free, but`, ...reasons, ...details].filter(Boolean).join("; ");
    const inTheWay = blocked.slice(0, MOST_BLOCKED).map((each) => {
      const why = [...each.holders, each.unhealthyDevices.length && `broken ${ranges(each.unhealthyDevices)}`, each.disabledDevices.length && `disabled ${ranges(each.disabledDevices)}`];
      return `${setText(each)}: ${why.filter(Boolean).join(", ") || "free, but not all at once"}`;
    });
    return [names + more, answer, inTheWay.join("; ")];
  });
  return table("Nodes", ["Node", "Answer", "In the way"], rows);
}

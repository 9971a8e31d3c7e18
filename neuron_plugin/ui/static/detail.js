// One node: its devices with their links, who has which core, what is free, and how it was decided.

import { devicesOf, ids, picture, ranges, update } from "./draw.js";
import { fetched } from "./watch.js";

const MOST_DECISIONS = 10;

export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function table(caption, head, rows) {
  const headings = html("tr", {}, ...head.map((each) => html("th", { scope: "col" }, each)));
  const lines = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, `${cell}` || "-"))));
  return html("table", {}, html("caption", {}, caption), html("thead", {}, headings), html("tbody", {}, ...lines));
}

export class Detail {
  constructor(section) {
    this.section = section;
    this.name = "";
    this.decisions = [];
  }

  /** Show a node, or nothing for an empty name. */
  async open(name) {
    this.name = name;
    this.decisions = [];
    this.section.hidden = !name;
    if (!name) return;
    try {
      const { decisions } = await (await fetched("../decisions")).json();
      this.decisions = decisions;
    } catch {
      // Shown without.
    }
  }

  draw(node, pods, colour) {
    if (this.section.hidden) return;
    const close = html("a", { href: "#" }, "Close");
    const title = html("h2", { id: "detail-title" }, `Node ${this.name}`);
    if (!node) {
      this.section.replaceChildren(title, html("p", {}, "There is no such node."), close);
      return;
    }
    const { spec, status } = node;
    const shown = picture(node, true);
    update(shown, node, colour);
    const lnc = spec.logicalCoreSize ? `, LNC ${spec.logicalCoreSize}` : "";
    const about = `${spec.instanceType || "unknown type"}: ${spec.devices} devices of ${spec.coresPerDevice} cores${lnc}, ` +
      `${spec.topology}, driver ${spec.driverVersion || "unknown"}`;
    const state = status.open ? "Open for pods." : `Takes no pods: ${[status.reason, ...status.details].join("; ")}`;
    const devices = devicesOf(node).map((each) => [
      each.id,
      ranges(Array.from({ length: spec.coresPerDevice }, (_, core) => each.id * spec.coresPerDevice + core)),
      each.health + (each.why ? `: ${each.why}` : ""),
      each.holders.map((holder) => `${holder.namespace}/${holder.name}`).join(", ") || (each.free ? "free" : "not free"),
    ]);
    const holders = status.holders.flatMap((holder) => {
      const pod = pods.get(holder.uid);
      const confirmed = pod && pod.status.allocated ? "confirmed by the kubelet" : "chosen, not confirmed yet";
      const parts = pod && pod.status.containers.length ? pod.status.containers : [{ name: "", ...holder }];
      const name = `${holder.namespace}/${holder.name}`;
      return parts.map((part) => [name, part.name, ranges(ids(part.devices)), ranges(ids(part.cores)), confirmed]);
    });
    const free = Object.entries(status.freeSets);
    const uids = new Set(status.holders.map((each) => each.uid));
    const decided = this.decisions.filter((each) => uids.has(each.uid) || each.node === this.name).slice(-MOST_DECISIONS);
    const decisions = decided.reverse().map((each) => [
      new Date(each.timeNs / 1e6).toLocaleTimeString(),
      each.step,
      each.pod,
      `${each.count} ${each.resource}`,
      ranges(ids(each.ids)),
      each.candidates.map((one) => `${ranges(ids(one.ids))} (${one.cost})`).join("; "),
    ]);
    this.section.replaceChildren(
      title,
      close,
      html("p", {}, `${about}. ${state}`),
      html("div", { class: "columns" },
        shown.root,
        table("Devices", ["Device", "Cores", "Health", "Pods"], devices),
        table("Sets of devices that are free", ["Devices", "Free sets"], free),
        table("Who has what", ["Pod", "Container", "Devices", "Cores", "State"], holders),
        table("Last decisions", ["Time", "Step", "Pod", "Asked", "Ids", "Candidates (cost)"], decisions)),
    );
  }
}

// One node: its devices with their links, who has which core, what is free, and how it was decided.

import { complete, devicesOf, ids, picture, ranges, update } from "./draw.js";
import { html, put, table } from "./html.js";
import { fetched } from "./watch.js";

const MOST_DECISIONS = 10;
const PAUSE_MS = 2000;

export class Detail {
  /** `changed` is called when there is something more to draw. */
  constructor(section, changed) {
    this.section = section;
    this.changed = changed;
    this.open("");
  }

  /** Show a node, or nothing for an empty name. */
  open(name) {
    this.name = name;
    this.decisions = [];
    this.version = "";
    this.asking = false;
    this.section.hidden = !name;
  }

  /** Ask for the last decisions, which no watch brings: once for a change of the node, and at most every two seconds. */
  async ask(version) {
    if (this.asking || this.version === version) return;
    this.asking = true;
    this.version = version;
    try {
      this.decisions = (await (await fetched("../decisions")).json()).decisions;
      this.changed();
    } catch {
      // The node is shown without; the watch says that the extender is away.
    }
    setTimeout(() => {
      this.asking = false;
      this.changed();
    }, PAUSE_MS);
  }

  draw(node, pods, colours, promised) {
    if (this.section.hidden) return;
    const title = html("h2", { id: "detail-title" }, `Node ${this.name}`);
    const close = html("a", { href: "#" }, "Close");
    if (!node) {
      put(this.section, title, close, html("p", {}, "There is no such node."));
      return;
    }
    this.ask(node.metadata.resourceVersion);
    const { spec, status } = node;
    const lnc = spec.logicalCoreSize ? `, LNC ${spec.logicalCoreSize}` : "";
    const about = `${spec.instanceType || "unknown type"}: ${spec.devices} devices of ${spec.coresPerDevice} cores${lnc}, ` +
      `${spec.topology}, driver ${spec.driverVersion || "unknown"}`;
    const state = status.open ? "Open for pods." : `Takes no pods: ${[status.reason, ...status.details].join("; ")}.`;
    put(this.section, title, close, html("p", {}, `${about}. ${state}`), html("div", { class: "columns" }, ...this.parts(node, pods, colours, promised)));
  }

  parts(node, pods, colours, promised) {
    const { spec, status } = node;
    const shown = picture(node);
    complete(shown, node, true);
    update(shown, node, colours, promised);
    const all = devicesOf(node);
    const devices = all.map(({ id, health, why, holders, free }) => [
      id,
      ranges(Array.from({ length: spec.coresPerDevice }, (_, core) => id * spec.coresPerDevice + core)),
      health === "healthy" || why.startsWith(health) ? why || health : `${health}${why ? `: ${why}` : ""}`,
      id in status.unhealthyDevices ? when(status.unhealthySince[id]) || "before the extender started" : "",
      holders.map((holder) => `${holder.namespace}/${holder.name}`).join(", ") || (free ? "free" : "not free"),
    ]);
    const held = all.filter((each) => each.health === "held down")
      .map(({ id, why }) => [id, why, "no process of the pod is alive; where that cannot be seen, hold-down-seconds are over"]);
    const holders = status.holders.flatMap((holder) => {
      const pod = pods.get(holder.uid);
      const confirmed = pod && pod.status.allocated ? "confirmed by the kubelet"
        : promised(holder) ? "promised, not bound yet" : "chosen, not confirmed yet";
      const parts = pod && pod.status.containers.length ? pod.status.containers : [{ name: "", ...holder }];
      const name = `${holder.namespace}/${holder.name}`;
      return parts.map((part) => [name, part.name, ranges(ids(part.devices)), ranges(ids(part.cores)), confirmed]);
    });
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
    const found = [
      table("Devices", ["Device", "Cores", "Health", "Since", "Pods"], devices),
      table("Free sets", ["Devices", "Number"], Object.entries(status.freeSets)),
    ];
    if (held.length) found.push(table("Hold-downs", ["Device", "Reason", "Until"], held));
    if (holders.length) found.push(table("Who has what", ["Pod", "Container", "Devices", "Cores", "State"], holders));
    if (decisions.length) found.push(table("Last decisions", ["Time", "Step", "Pod", "Asked", "Ids", "Candidates (cost to later pods)"], decisions));
    return [shown.root, ...found];
  }
}

const when = (seconds) => (seconds ? new Date(1000 * seconds).toLocaleString() : "");

// What is known of one node or of one pod, beside all the others.

import { deviceText, picture, update } from "./draw.js";
import { ageOf, asks, byName, factsOf, nameOf, plural, ranges, secondsOf, short, sizesOf, useText, when } from "./facts.js";
import { hashOf, html, link, put, table } from "./html.js";
import { element } from "./paint.js";
import { fetched } from "./stream.js";

const MOST_DECISIONS = 10;
const UNTIL = { "held down": "no process of the pod is alive; where that cannot be seen, hold-down-seconds are over" };
const PAUSE_MS = 2000;

/** What no watch brings: asked once for each version of what is shown, and at most every two seconds. */
class Asked {
  constructor(changed) {
    this.changed = changed;
    this.reset();
  }

  reset() {
    this.found = [];
    this.version = "";
    this.asking = false;
  }

  async ask(path, version, read) {
    if (this.asking || this.version === version) return;
    this.asking = true;
    this.version = version;
    try {
      const found = read(await (await fetched(path)).json());
      if (this.version === version) this.found = found;
      this.changed();
    } catch {
      // It is shown without; the stream says that the controller is away.
    }
    setTimeout(() => {
      this.asking = false;
      this.changed();
    }, PAUSE_MS);
  }
}

export class Drawer {
  /** `changed` is called when there is something more to draw. */
  constructor(section, changed) {
    this.section = section;
    this.decisions = new Asked(changed);
    this.events = new Asked(changed);
    this.changed = changed;
    this.open("", "");
    section.addEventListener("click", ({ target }) => this.choose(target));
    section.addEventListener("keydown", (event) => {
      if (["Enter", " "].includes(event.key) && this.choose(event.target)) event.preventDefault();
    });
  }

  /** Show a node or a pod, or nothing for an empty name. */
  open(kind, name) {
    this.kind = kind;
    this.name = name;
    this.device = -1;
    this.drawn = null;
    this.decisions.reset();
    this.events.reset();
    this.section.hidden = !name;
    document.body.classList.toggle("drawer-open", Boolean(name));
  }

  choose(target) {
    const device = target.closest?.("[data-device]")?.dataset.device;
    if (device === undefined) return false;
    this.device = Number(device);
    this.changed();
    return true;
  }

  /** `all` is what the page knows: nodes by name, pods by UID, the look of holders, the order of nodes, who waits. */
  draw(all) {
    if (this.section.hidden) return;
    const shown = this.kind === "pod" ? this.podParts(all) : this.nodeParts(all);
    put(this.section, ...(shown || [...this.head([]), html("p", {}, `There is no such ${this.kind}.`)]));
  }

  head(badges, beside = []) {
    const title = html("h2", { id: "drawer-title" }, this.name, ...badges.map((each) => html("span", { class: `badge ${each}` }, each)));
    const names = { previous: "‹", next: "›" };
    const ways = beside.map(([word, name]) => html("a", { href: hashOf(this.kind, name), "aria-label": `${word}: ${name}`, title: name }, names[word]));
    const close = html("a", { href: "#", "aria-label": "Close", title: "Close (Escape)" }, "×");
    return [html("nav", { "aria-label": `This ${this.kind}` }, html("small", {}, this.kind), ...ways, close), title];
  }

  /** The picture of a node, whose devices can be chosen. */
  pictureOf(node, look) {
    const shape = `${node.metadata.name} ${node.spec.topology} ${node.spec.devices}`;
    if (this.drawn?.shape !== shape) {
      this.drawn = { ...picture(node, "large"), shape };
      const { root } = this.drawn;
      root.setAttribute("role", "group");
      root.setAttribute("aria-label", `Devices of ${node.metadata.name}`);
      update(this.drawn, node, look, true);
      for (const { group } of this.drawn.cells) {
        group.setAttribute("tabindex", "0");
        group.setAttribute("role", "button");
      }
      root.append(...this.drawn.placed.map(([x, y], id) => element("text", { class: "number", x: x + 3.5, y: y + 10 }, `${id}`)));
    }
    update(this.drawn, node, look, true);
    for (const { group, title } of this.drawn.cells) {
      group.setAttribute("aria-label", title.textContent);
      group.setAttribute("aria-pressed", `${Number(group.dataset.device) === this.device}`);
    }
    return this.drawn.root;
  }

  reading(node, look) {
    const device = factsOf(node).devices[this.device];
    if (!device) return html("p", { class: "reading" }, "Choose a device to read who has it.");
    const owners = device.holders.map((each) => link("pod", nameOf(each)));
    return html("p", { class: "reading", role: "status" }, `${deviceText(device, look)}; cores ${ranges(coresOf(device.id, node.spec))}. `, ...owners);
  }

  nodeParts({ nodes, pods, look, order }) {
    const node = nodes.get(this.name);
    if (!node) return null;
    this.decisions.ask("../decisions", node.metadata.resourceVersion, ({ decisions }) => decisions);
    const { spec, status } = node;
    const { devices, badges } = factsOf(node);
    const place = order.indexOf(this.name);
    const beside = [["previous", order[place - 1]], ["next", order[place + 1]]].filter(([, name]) => place >= 0 && name);
    const lnc = spec.logicalCoreSize ? `, LNC ${spec.logicalCoreSize}` : "";
    const about = `${spec.instanceType || "unknown type"}: ${plural(spec.devices, "device")} of ${plural(spec.coresPerDevice, "core")}${lnc}, ` +
      `${spec.topology}, driver ${spec.driverVersion || "unknown"}.`;
    const state = status.open ? "Open for pods." : `Takes no pods: ${[status.reason, ...status.details].join("; ")}.`;
    const sizes = sizesOf(node).map((count) => {
      const number = status.open ? status.freeSets[count] : 0;
      return html("span", { class: `size${number ? " some" : ""}` }, `${count}`, html("small", {}, ` ×${number}`));
    });
    const alike = Map.groupBy(devices.filter((each) => each.health !== "healthy"), ({ id, health, why, holders }) => JSON.stringify([
      why.startsWith(health) ? why : `${health}${why ? `: ${why}` : ""}`,
      id in status.unhealthyDevices ? (status.unhealthySince[id] ? when(secondsOf(status.unhealthySince[id])) : "before the controller started") : "",
      UNTIL[health] || "", holders.map(nameOf),
    ]));
    const rows = [...alike].map(([text, members]) => {
      const [health, since, until, names] = JSON.parse(text);
      return [ranges(members.map(({ id }) => id)), health, since, until, html("span", {}, ...names.map((name) => link("pod", name)))];
    });
    const holders = status.holders.flatMap((holder) => {
      const pod = pods.get(holder.uid);
      const parts = pod?.status.containers.length ? pod.status.containers : [{ name: "", ...holder }];
      return parts.map((part) => [link("pod", nameOf(holder)), part.name, ranges(part.devices), ranges(part.cores), pod?.status.state || ""]);
    });
    const uids = new Set(status.holders.map((each) => each.uid));
    const free = status.open && status.freeDevices.length ? `Free: ${ranges(status.freeDevices)}. ` : "";
    const found = [html("p", { class: "sizes" }, html("span", {}, `${free}Free sets`), ...sizes)];
    if (rows.length) found.push(table("Out of service", ["Device", "State", "Since", "Until", "Pods"], rows));
    if (holders.length) found.push(table("Who has what", ["Pod", "Container", "Devices", "Cores", "State"], holders));
    found.push(...this.decided((each) => uids.has(each.uid) || each.node === this.name));
    return [...this.head(badges, beside), html("p", {}, `${about} ${state}`), this.pictureOf(node, look), this.reading(node, look), ...found];
  }

  decided(about) {
    const rows = this.decisions.found.filter(about).slice(-MOST_DECISIONS).reverse().map((each) => [
      when(secondsOf(each.time)), each.step, each.pod, `${each.count} ${short(each.resource)}`, ranges(each.ids),
      each.candidates.map((one) => `${ranges(one.ids)} (${one.cost})`).join("; "),
    ]);
    return rows.length ? [table("Last decisions", ["Time", "Step", "Pod", "Asked", "Ids", "Candidates (cost to later pods)"], rows)] : [];
  }

  /** The live pod of the name; the one that is not being deleted where a name is there twice. */
  pod(pods) {
    const named = [...pods.values()].filter((each) => nameOf(each.metadata) === this.name);
    return named.find((each) => each.status.phase !== "Terminating") || named[0];
  }

  podParts({ nodes, pods, look, waiting, workloadOf }) {
    const pod = this.pod(pods);
    if (!pod) return null;
    const { metadata, spec, status } = pod;
    const version = metadata.resourceVersion;
    this.decisions.ask("../decisions", version, ({ decisions }) => decisions);
    this.events.ask(`events/${this.name}`, version, ({ events, problem }) => (problem ? [{ note: `cannot be read: ${problem}`, count: 1 }] : events.filter((each) => !each.uid || each.uid === metadata.uid)));
    const where = spec.nodeName || status.promisedNode;
    const node = nodes.get(where);
    const given = new Map(status.containers.map((each) => [each.name, each]));
    const containers = spec.containers.map((each) => {
      const has = given.get(each.name) || { devices: [], cores: [] };
      return [each.name, each.kind, `${each.count} ${short(each.resource)}`, ranges(has.devices), ranges(has.cores), useText(has.utilization) || "not known"];
    });
    const group = workloadOf(metadata);
    const mates = [...pods.values()].filter((each) => each !== pod && workloadOf(each.metadata) === group);
    const facts = [
      ["State", status.state],
      ["Node", where ? link("node", where) : "none yet"],
      ["Health", status.problem || (where ? "no problem" : "")],
      ["Asks for", asks(spec)],
      ["Age", spec.created ? ageOf(Date.now() / 1000 - secondsOf(spec.created)) : ""],
      ["Priority", `${spec.priority}`],
      ["Made by", spec.controller],
      ["Group", spec.group],
      ["May be moved", spec.movable ? "yes" : ""],
    ].filter(([, value]) => value);
    const list = html("dl", {}, ...facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
    const found = status.phase === "Waiting" ? [html("section", { class: "why" }, html("h3", {}, "Why it waits"), ...waiting.reasonOf(pod))] : [];
    if (node) found.push(this.pictureOf(node, look), this.reading(node, look));
    found.push(table("Containers", ["Container", "Kind", "Asks for", "Devices", "Cores", "Use"], containers));
    if (mates.length) {
      const rows = mates.sort((a, b) => byName(a.metadata.name, b.metadata.name)).map((each) => [
        link("pod", nameOf(each.metadata)), each.status.state, each.spec.nodeName || each.status.promisedNode,
        ranges(each.status.containers.flatMap((one) => one.devices)),
      ]);
      found.push(table("The others of its workload", ["Pod", "State", "Node", "Devices"], rows));
    }
    const now = Date.now() / 1000;
    const events = this.events.found.map((each) => [each.at ? ageOf(now - secondsOf(each.at)) : "", each.reason || "", each.note, each.count]);
    if (events.length) found.push(table("Events", ["Age", "Reason", "Message", "Times"], events));
    found.push(...this.decided((each) => each.uid === metadata.uid));
    return [...this.head([]), list, ...found];
  }
}

const coresOf = (id, { coresPerDevice }) => Array.from({ length: coresPerDevice }, (_, core) => id * coresPerDevice + core);

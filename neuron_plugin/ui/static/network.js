// What is free in each part of the network: the tree of `nodes --tree`, whose domains open and close.

import { byName, plural } from "./facts.js";
import { html, link, put } from "./html.js";
import { fetched } from "./stream.js";

const MOST_OPEN = 16; // nodes; of more, domains are closed until they are opened
const PAUSE_MS = 5000; // an answer may be so old: one that is asked for so long after a change knows it

export class Network {
  /** `changed` is called when there is something more to draw. */
  constructor(section, changed) {
    this.section = section;
    this.list = section.querySelector("ul");
    this.changed = changed;
    this.tree = { parts: [] };
    this.opened = new Map(); // whether a domain is open, of those that the user has opened or closed
    this.asking = false;
    this.again = false; // whether a node has changed since it was to be asked
  }

  /** Ask for the tree again, soon: a node has changed. */
  read(pause = PAUSE_MS) {
    this.again = this.asking;
    if (this.asking) return;
    this.asking = true;
    setTimeout(async () => {
      try {
        this.tree = await (await fetched("domains.json")).json();
        this.changed();
      } catch {
        // The last one stays.
      }
      this.asking = false;
      if (this.again) this.read();
    }, pause);
  }

  draw() {
    const { parts, nodes } = this.tree;
    this.section.hidden = !parts.length;
    put(this.list, ...this.items(this.tree, "", nodes <= MOST_OPEN));
  }

  items({ parts, members }, above, open) {
    return [...parts.map((part) => this.item(part, above, open)), ...(members?.length ? [nodesItem(members)] : [])];
  }

  /** Domains that have one domain and nothing else in them stand in one line with it. */
  item(domain, above, open) {
    let [last, key, names] = [domain, above, []];
    for (let next = domain; next; next = last.members.length || last.parts.length !== 1 ? null : last.parts[0]) {
      [last, key] = [next, `${key}/${next.level} ${next.name}`];
      names.push(`${next.level.split("/").pop()} ${next.name}`);
    }
    const { nodes, whole, freeDevices, devices } = last;
    const about = html("summary", {},
      html("span", {}, names.join(", ")), " ", html("meter", { min: 0, max: devices, value: freeDevices, "aria-hidden": "true" }), " ",
      html("small", {}, `${freeDevices} of ${plural(devices, "device")} free, ${whole} of ${plural(nodes, "node")} whole`));
    const part = html("details", {}, about);
    part.open = this.opened.get(key) ?? open;
    if (part.open) part.append(html("ul", {}, ...this.items(last, key, open)));
    about.addEventListener("click", (event) => {
      event.preventDefault();
      this.opened.set(key, !part.open);
      this.changed();
    });
    return html("li", {}, part);
  }
}

const nodesItem = (names) => html("li", { class: "members" }, ...[...names].sort(byName).flatMap((name) => [link("node", name), " "]));

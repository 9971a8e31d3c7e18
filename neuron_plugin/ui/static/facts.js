// What nodes and pods are, in words and numbers: functions of the objects of the monitor API, and nothing of the page.

/** "0-3,5" */
export function ranges(numbers) {
  const parts = [];
  for (const each of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === each - 1) last[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

export const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
/** Of a pod's metadata, or of a holder. */
export const nameOf = ({ namespace, name }) => `${namespace}/${name}`;
export const byName = new Intl.Collator("en", { numeric: true }).compare;

const AGES = [[86400, "d"], [3600, "h"], [60, "m"]];

/** "3h" of seconds. */
export function ageOf(seconds) {
  const [size, unit] = AGES.find(([least]) => seconds >= least) || [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))}${unit}`;
}

/** Unix seconds of a time of the API; 0 where it is not known. */
export const secondsOf = (time) => (time ? Date.parse(time) / 1000 : 0);

/** "16:50:17", and the date before it unless it is today: the one form of times. */
export function when(seconds) {
  const [day, time] = new Date(1000 * seconds).toLocaleString("sv").split(" ");
  return day === new Date().toLocaleDateString("sv") ? time : `${day} ${time}`;
}

/** What can be wrong with a device, the worst first. */
export const STATES = ["unhealthy", "missing", "held down", "disabled", "reserved"];

/** What each device is: healthy or one of STATES, who has it, and whether that is broken. */
function devicesOf({ spec, status }) {
  const [missing, heldDown, disabled, free] = ["missingDevices", "heldDownDevices", "disabledDevices", "freeDevices"]
    .map((key) => new Set(status[key]));
  const reserved = new Map();
  for (const { pod, cores } of status.reserved) {
    for (const core of cores) reserved.set(Math.floor(core / spec.coresPerDevice), `for ${pod}`);
  }
  const holders = new Map();
  for (const holder of status.holders) {
    for (const device of holder.devices) holders.set(device, [...(holders.get(device) || []), holder]);
  }
  return Array.from({ length: spec.devices }, (_, id) => {
    const held = holders.get(id) || [];
    const sick = status.unhealthyDevices[id];
    const kept = held.length ? "" : reserved.get(id);
    const health = missing.has(id) ? "missing" : heldDown.has(id) ? "held down" : sick ? "unhealthy"
      : disabled.has(id) ? "disabled" : kept ? "reserved" : "healthy";
    const broken = health === "missing" || health === "unhealthy";
    const use = status.utilization[id]; // of a device that pods have, and of which it is known
    return { id, health, broken, why: sick || kept || "", holders: held, free: free.has(id), use };
  });
}

/** "73 % busy", and since when it is idle; empty where that is not known. */
export function useText(use) {
  if (!use?.known) return "";
  return `${use.busyPercent} % busy${use.idleSince ? `, idle since ${when(secondsOf(use.idleSince))}` : ""}`;
}

/** What a card says about its node before anything else; the reason is in its title. */
function badgesOf({ open, cordoned, stale, reserved }) {
  const badges = [cordoned && "cordoned", stale && "silent"].filter(Boolean);
  if (!open && !badges.length) badges.push("closed");
  return reserved.length ? [...badges, "reserved"] : badges;
}

const known = new WeakMap(); // an object of the API does not change

/**
 * A node in numbers of devices, as the extender counts them: each is used, free or one of `unused`; `usedBroken` are a
 * part of the used ones. `states` count all devices, used ones too, as they are marked. `largest` is the size of the largest set that could be given now. `worst` grows with what is
 * wrong: first what pods feel, then what later pods will.
 */
export function factsOf(node) {
  if (known.has(node)) return known.get(node);
  const { spec, status } = node;
  const { used, usedBroken, free, closed, heldDown, ...rest } = status.deviceCounts;
  const unused = { ...rest, "held down": heldDown, "on closed nodes": closed };
  const badges = badgesOf(status);
  const devices = devicesOf(node);
  const states = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const { health } of devices) if (health in states) states[health]++;
  const found = {
    devices, used, usedBroken, free, unused, badges,
    count: spec.devices,
    states,
    idle: status.idleDevices.length,
    largest: status.open ? status.largestFreeSet.length : 0,
    brokenHolders: new Set(devices.filter((each) => each.broken).flatMap((each) => each.holders)).size,
    worst: 1000 * usedBroken + 500 * badges.includes("silent") + 300 * badges.includes("closed") +
      20 * (unused.unhealthy + unused.missing) + 10 * badges.includes("cordoned") + unused.disabled,
  };
  known.set(node, found);
  return found;
}

const FEW_SIZES = 5;

/** The sizes of sets that a card names: all of a torus, some of a line. */
export function sizesOf({ status }) {
  const sizes = Object.keys(status.freeSets).map(Number);
  if (sizes.length <= FEW_SIZES) return sizes;
  return sizes.filter((each) => each === sizes[sizes.length - 1] || Number.isInteger(Math.log2(each)));
}

/** "1 of 4 allocated broken; 2 missing": empty where nothing is wrong. */
export function wrongWith({ used, usedBroken, unused }) {
  const parts = usedBroken ? [`${usedBroken} of ${used} allocated broken`] : [];
  return [...parts, ...STATES.filter((each) => unused[each]).map((each) => `${unused[each]} ${each}`)].join("; ");
}

export function described(node) {
  const facts = factsOf(node);
  const { count, used, free, largest, badges } = facts;
  const parts = [`${free} free${free ? `, largest free set ${largest}` : ""}`, `${used} allocated`, ...badges, wrongWith(facts)];
  return `${plural(count, "device")} in a ${node.spec.topology}: ${parts.filter(Boolean).join("; ")}`;
}

/** What a pod asks for: "main: 4 neuron, other: 1 neuroncore". */
export const asks = ({ containers }) => containers.map((each) => `${each.name}: ${each.count} ${short(each.resource)}`).join(", ");
export const short = (resource) => resource.slice(resource.lastIndexOf("/") + 1);

// Whose device-hours the last day had: a row for each namespace, as `neuron-plugin usage` prints it.

import { put, table } from "./html.js";
import { fetched } from "./stream.js";

const EVERY_MS = 120_000;
const MOST_ROWS = 10;
const STATES = ["busy", "idle", "unknown", "held", "free", "broken"];

/** Show the account now and again; hidden where this replica keeps none. */
export async function showHours(section) {
  try {
    const { rows, deviceHours } = (await (await fetched("hours.json")).json()) || { rows: [] };
    const names = new Map(); // a namespace has a row for each instance type
    for (const { namespace, deviceHours: hours } of rows) {
      const known = names.get(namespace) || {};
      for (const [state, amount] of Object.entries(hours)) known[state] = (known[state] || 0) + amount;
      names.set(namespace, known);
    }
    const lines = [...names].map(([name, hours]) => {
      const sum = Object.values(hours).reduce((total, amount) => total + amount, 0);
      const share = `${((100 * sum) / deviceHours).toFixed(1)} %`;
      return [name || "nobody's", sum.toFixed(1), share, ...STATES.map((state) => (hours[state] ? hours[state].toFixed(1) : ""))];
    });
    section.hidden = !lines.length;
    const head = ["Namespace", "Device-hours", "Share", ...STATES];
    const rest = lines.length - MOST_ROWS;
    put(section.querySelector("div"), table(rest > 0 ? `The first ${MOST_ROWS} of ${lines.length}` : "", head, lines.slice(0, MOST_ROWS)));
  } catch {
    section.hidden = true;
  }
  setTimeout(() => showHours(section), EVERY_MS);
}

// Nodes and pods as the extender shows them, read once for all pages of a browser: it opens six connections to a host
// for all its pages together. Runs as their SharedWorker; in a page alone where the browser has none.
// docs/monitor-api.md describes what is read here; this file knows no more than that.

export const PATH = "../apis/neuron-plugin.io/v1/neuronnodes,neuronpods";
const PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;
export const SILENCE_MS = 10000; // bookmarks come every 5 s

const ports = new Set(); // of the pages that listen
const objects = new Map(); // the last ones known
let version = "";
let heard = 0; // when the extender said something
let problem = "";
let stop = null; // what ends the stream
let wake = () => {}; // what ends a pause
let pause = PAUSE_MS;

self.onconnect = ({ ports: [port] }) => serve(port);

/**
 * Serve the page behind a port. It says what it has listed, or "", and is told each change from then on, as
 * `{ heard, problem, objects, events }`: `objects` replace all that it knows, `events` are those of the watch. "leave"
 * ends that. While no page listens nothing is read.
 */
export function serve(port) {
  port.onmessage = ({ data }) => (data === "leave" ? leave(port) : join(port, data));
}

function join(port, listed) {
  ports.add(port);
  if (version) port.postMessage({ heard, problem, objects: [...objects.values()] });
  else if (listed) keep(JSON.parse(listed));
  wake();
  if (!stop) run();
}

function leave(port) {
  ports.delete(port);
  if (!ports.size) stop?.abort("left");
}

function tell(news) {
  for (const port of ports) port.postMessage({ heard, problem, ...news });
}

/** The extender lives. */
function live(news) {
  heard = Date.now();
  problem = "";
  pause = PAUSE_MS;
  tell(news);
}

async function run() {
  while (ports.size) {
    stop = new AbortController();
    try {
      if (!version) await list();
      await watch(stop);
    } catch (error) {
      if (stop.signal.reason === "left") continue;
      if (error.status === 410) version = ""; // too far behind, or of another replica: list again
      else tell({ problem: (problem = String(error.message || error)) });
    }
    await new Promise((resume) => setTimeout((wake = resume), pause * (0.5 + Math.random())));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
  stop = null;
}

async function list() {
  const listed = await (await fetched(PATH)).json();
  keep(listed);
  live({ objects: listed.items });
}

function keep({ metadata, items }) {
  objects.clear();
  for (const each of items) objects.set(keyOf(each), each);
  version = metadata.resourceVersion;
}

async function watch(stop) {
  const answer = await fetched(`${PATH}?watch=true&allowWatchBookmarks=true&resourceVersion=${version}`, stop);
  live();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await within(reader.read(), () => reader.cancel());
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    const events = lines.map((line) => JSON.parse(line));
    for (const { type, object } of events) {
      if (type === "ERROR") throw Object.assign(new Error(object.message), { status: object.code });
      version = object.metadata.resourceVersion;
      if (type === "DELETED") objects.delete(keyOf(object));
      else if (type !== "BOOKMARK") objects.set(keyOf(object), object);
    }
    live({ events: events.filter(({ type }) => type !== "BOOKMARK") });
  }
}

/** Pods are known by their UID, nodes by their name: a node that comes back has another UID. */
export const keyOf = ({ kind, metadata }) => (kind === "NeuronPod" ? metadata.uid : metadata.name);

/** What is promised, or an error if it does not come: a process that is stopped keeps its connections. */
async function within(promised, abort) {
  let timer;
  const silent = new Promise((_, fail) => {
    timer = setTimeout(() => {
      fail(new Error("the controller is silent"));
      abort();
    }, SILENCE_MS);
  });
  try {
    return await Promise.race([promised, silent]);
  } catch (error) { // every browser has other words for a server that is away
    throw error instanceof TypeError ? new Error("the controller does not answer") : error;
  } finally {
    clearTimeout(timer);
  }
}

export async function fetched(path, control = new AbortController()) {
  const answer = await within(fetch(path, { signal: control.signal }), () => control.abort());
  if (answer.ok) return answer;
  throw Object.assign(new Error(`${answer.status} ${answer.statusText}`), { status: answer.status });
}

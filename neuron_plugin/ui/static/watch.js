// One collection of the monitor API, listed and watched as any Kubernetes client does.
// docs/monitor-api.md describes what is read here; this file knows no more than that.

const BASE = "../apis/neuron-plugin.io/v1/";
const PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;
export const SILENCE_MS = 10000; // bookmarks come every 5 s

export class Collection {
  /**
   * `changed(object, before)` is called for each object that came, changed or went (then `object` is null), and
   * `connected(plural, problem)` when the collection is live (then `problem` is empty), or why it is not.
   */
  constructor(plural, changed, connected) {
    this.objects = new Map();
    this.plural = plural;
    this.changed = changed;
    this.connected = connected;
    this.version = "";
    this.heard = Date.now();
    this.pause = PAUSE_MS;
  }

  async run() {
    for (;;) {
      try {
        if (!this.version) await this.list();
        await this.watch();
      } catch (error) {
        this.connected(this.plural, String(error.message || error));
        await new Promise((resume) => setTimeout(resume, this.pause * (0.5 + Math.random())));
        this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
      }
    }
  }

  async list() {
    const answer = await fetched(BASE + this.plural);
    const { metadata, items } = await answer.json();
    const kept = new Set(items.map(keyOf));
    for (const key of [...this.objects.keys()].filter((each) => !kept.has(each))) this.put(key, null);
    for (const item of items) this.put(keyOf(item), item);
    this.version = metadata.resourceVersion;
  }

  /** Something came: the extender lives. */
  live() {
    this.heard = Date.now();
    this.pause = PAUSE_MS;
    this.connected(this.plural, "");
  }

  async watch() {
    const query = `?watch=true&allowWatchBookmarks=true&resourceVersion=${this.version}`;
    let answer;
    try {
      answer = await fetched(BASE + this.plural + query);
    } catch (error) {
      if (error.status === 410) this.version = "";
      throw error;
    }
    this.live();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { done, value } = await within(reader.read(), () => reader.cancel());
      if (done) return;
      this.live();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const { type, object } = JSON.parse(line);
        if (type === "ERROR") {
          this.version = ""; // too far behind: list again
          await reader.cancel();
          return;
        }
        if (type !== "BOOKMARK") this.put(keyOf(object), type === "DELETED" ? null : object);
        this.version = object.metadata.resourceVersion;
      }
    }
  }

  put(key, object) {
    const before = this.objects.get(key) || null;
    if (object) this.objects.set(key, object);
    else this.objects.delete(key);
    this.changed(object, before);
  }
}

/** Pods are known by their UID, nodes by their name: a node that comes back has another UID. */
function keyOf(object) {
  return object.kind === "NeuronPod" ? object.metadata.uid : object.metadata.name;
}

/** What is promised, or an error if it does not come: a process that is stopped keeps its connections. */
async function within(promised, abort) {
  let timer;
  const silent = new Promise((_, fail) => {
    timer = setTimeout(() => {
      fail(new Error("the extender is silent"));
      abort();
    }, SILENCE_MS);
  });
  try {
    return await Promise.race([promised, silent]);
  } finally {
    clearTimeout(timer);
  }
}

export async function fetched(path) {
  const control = new AbortController();
  const answer = await within(fetch(path, { cache: "no-store", signal: control.signal }), () => control.abort());
  if (answer.ok) return answer;
  const error = new Error(`${answer.status} ${answer.statusText}`);
  error.status = answer.status;
  throw error;
}

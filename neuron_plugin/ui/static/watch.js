// One collection of the monitor API, listed and watched as any Kubernetes client does.
// docs/monitor-api.md describes what is read here; this file knows no more than that.

const BASE = "../apis/neuron-plugin.io/v1/";
const PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;

export class Collection {
  /** `changed(object, before)` is called for each object that came, changed or went (then `object` is null). */
  constructor(plural, changed, connected) {
    this.objects = new Map();
    this.plural = plural;
    this.changed = changed;
    this.connected = connected;
    this.version = "";
  }

  async run() {
    for (let pause = PAUSE_MS; ; ) {
      try {
        if (!this.version) await this.list();
        this.connected(this.plural, "");
        pause = PAUSE_MS;
        await this.watch();
      } catch (error) {
        this.connected(this.plural, String(error.message || error));
        await new Promise((resume) => setTimeout(resume, pause * (0.5 + Math.random())));
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
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

  async watch() {
    const query = `?watch=true&allowWatchBookmarks=true&resourceVersion=${this.version}`;
    let answer;
    try {
      answer = await fetched(BASE + this.plural + query);
    } catch (error) {
      if (error.status === 410) this.version = "";
      throw error;
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
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

export async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (answer.ok) return answer;
  const error = new Error(`${answer.status} ${answer.statusText}`);
  error.status = answer.status;
  throw error;
}

// Nodes and pods as this page knows them: what the stream that all pages of the browser share has told it.

import { PATH, fetched, keyOf, serve } from "./stream.js";

const QUIET_SECONDS = 40; // the stream says something at least this often, whatever the extender does

export class Live {
  /** `changed(object, before)` is called for each object that came, changed or went (then `object` is null). `said` is called whenever the stream says something. */
  constructor(changed, said) {
    this.nodes = new Map(); // by name
    this.pods = new Map(); // by UID
    this.heard = 0; // when the extender said something
    this.problem = ""; // why nothing new is known
    this.alone = !self.SharedWorker;
    this.quiet = 0;
    this.changed = changed;
    this.said = said;
    // A page that was left keeps its connections, in case that the user comes back to it.
    addEventListener("pagehide", () => this.leave());
    addEventListener("pageshow", ({ persisted }) => { if (persisted) this.join(); });
    document.addEventListener("visibilitychange", () => {
      if (this.alone) document.hidden ? this.leave() : this.join();
    });
    setInterval(() => { if (this.port && !this.alone && ++this.quiet > QUIET_SECONDS) this.joinAlone(); }, 1000);
    this.begin();
  }

  /** The first list is read here: a page is painted sooner than the worker has begun. */
  async begin() {
    let listed = "";
    try {
      listed = await (await fetched(PATH)).text();
      this.hear({ heard: Date.now(), problem: "", objects: JSON.parse(listed).items });
    } catch {
      // The stream lists again, and says what is wrong.
    }
    this.join(listed);
  }

  join(listed = "") {
    this.leave();
    this.quiet = 0;
    if (this.alone) {
      const { port1, port2 } = new MessageChannel();
      this.port = port1;
      serve(port2);
    } else {
      const worker = new SharedWorker(new URL("stream.js", import.meta.url), { type: "module" });
      worker.onerror = () => this.joinAlone();
      this.port = worker.port;
    }
    this.port.onmessage = ({ data }) => this.hear(data);
    this.port.postMessage(listed);
  }

  /** Without the shared stream: it does not come, or no more. */
  joinAlone() {
    this.alone = true;
    this.join();
  }

  leave() {
    this.port?.postMessage("leave");
    this.port?.close();
    this.port = null;
  }

  hear({ heard, problem, objects, events = [] }) {
    this.quiet = 0;
    if (objects) {
      const kept = new Set(objects.map(keyOf));
      for (const known of [this.nodes, this.pods]) for (const [key, object] of known) if (!kept.has(key)) this.put(object, true);
      for (const object of objects) this.put(object, false);
    }
    for (const { type, object } of events) this.put(object, type === "DELETED");
    [this.heard, this.problem] = [Math.max(heard, this.heard), problem];
    this.said();
  }

  put(object, gone) {
    const known = object.kind === "NeuronPod" ? this.pods : this.nodes;
    const before = known.get(keyOf(object)) || null;
    if (!gone && before?.metadata.resourceVersion === object.metadata.resourceVersion) return;
    if (gone) known.delete(keyOf(object));
    else known.set(keyOf(object), object);
    this.changed(gone ? null : object, before);
  }
}

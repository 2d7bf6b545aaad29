// Runs the dashboard's script against a document, a daemon and a stream that only record.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");

class Element {
  constructor(name) {
    Object.assign(this, { name, children: [], dataset: {}, style: {}, textContent: "", className: "", handlers: {}, clientWidth: 100 });
    this.classes = new Set();
    this.classList = { add: (one) => this.classes.add(one), remove: (one) => this.classes.delete(one) };
  }
  append(...more) {
    for (const one of more) if (one instanceof Element) one.parent = this;
    this.children.push(...more);
  }
  replaceChildren(...more) {
    this.children = [];
    this.append(...more);
  }
  remove() {
    this.parent = undefined;
  }
  get isConnected() {
    return this.parent !== undefined;
  }
  setAttribute(name, value) {
    this[name] = value;
  }
  addEventListener(name, handler) {
    this.handlers[name] = handler;
  }
  blur() {}
  get valueAsNumber() {
    return Number(this.value);
  }
}

const ids = new Map();
const body = new Element("body");
const made = [];
const document = {
  body,
  title: "",
  documentElement: new Element("html"),
  getElementById: (id) => ids.get(id) ?? ids.set(id, new Element(id)).get(id),
  createElement: (name) => {
    const element = new Element(name);
    made.push(element);
    return element;
  },
};
const requests = [];
const vm = { name: "web", limits: { max_bytes: 32 << 20 } };
const answers = {
  "/v1/host": { node: "node-7", gpu_model: "Software GPU", policy: "dfq", role: "operator", gpus: ["software-0", "software-1"] },
  "/v1/live/history?gpu=software-0": [],
  "/v1/live/history?gpu=software-1": [],
};
async function fetch(path, options) {
  requests.push([path, options]);
  const body = answers[path] ?? (path.startsWith("/v1/vms?") ? { items: [vm] } : {});
  return { ok: true, json: async () => body, headers: { get: () => '"1"' } };
}
const streams = [];
class EventSource {
  constructor(path) {
    this.path = path;
    this.handlers = {};
    streams.push(this);
  }
  addEventListener(name, handler) {
    this.handlers[name] = handler;
  }
  close() {
    this.closed = true;
  }
}
const timers = [];
const names = ["document", "fetch", "EventSource", "matchMedia", "getComputedStyle", "uPlot", "addEventListener", "setTimeout", "Option"];
const values = [
  document,
  fetch,
  EventSource,
  () => ({ matches: false, addEventListener() {} }),
  () => ({ getPropertyValue: () => "" }),
  class {
    setData() {}
  },
  () => {},
  (call) => timers.push(call),
  class extends Element {
    constructor(text) {
      super("option");
      this.value = text;
    }
  },
];
new Function(...names, fs.readFileSync(process.argv[2], "utf8"))(...values);

const settled = () => new Promise((done) => setImmediate(done));
const row = {
  tenant: 1, name: "web", account: "uid-0", processes: null, weight: 100, cap: 0.25, doing: "runs", entitled: 1, received: 1,
  waiting: 0, held: 0, gpu_seconds: 1, held_bytes: null, memory: null,
};
const view = {
  at_ns: 1e9, engine: { used: 1, switching: 0 }, conservation_error_ns: 0, tenants: [row], accounts: [], ledger: null,
};

(async () => {
  for (let turn = 0; turn < 8; turn++) await settled();
  assert.equal(document.title, "node-7 - Turnstile");
  const [stream] = streams;
  stream.handlers.open();
  await stream.handlers.view({ data: JSON.stringify(view) });
  const field = (label) => made.find((element) => element["aria-label"] === label + " of web");
  assert.equal(field("Cap in percent").value, 25);
  assert.equal(field("Memory limit in MiB").value, 32);
  const change = async (label, value) => {
    field(label).value = value;
    await field(label).handlers.change();
    const patch = requests.filter(([, options]) => options?.method === "PATCH").pop();
    return [patch[0], JSON.parse(patch[1].body)];
  };
  const cap = await change("Cap in percent", "50");
  assert.deepEqual(cap, ["/v1/vms/web/scheduling", { quota_us: 50000, period_us: 100000 }]);
  const memory = await change("Memory limit in MiB", "");
  assert.deepEqual(memory, ["/v1/vms/web/memory", { max_bytes: null }]);
  stream.handlers.error();
  assert.ok(body.classes.has("gone") && stream.closed);
  assert.equal(timers.length, 1);
  timers[0]();
  for (let turn = 0; turn < 8; turn++) await settled();
  streams[1].handlers.open();
  assert.ok(!body.classes.has("gone"));
  const choice = document.getElementById("gpu-choice");
  assert.deepEqual(choice.children.map((one) => one.value), ["software-0", "software-1"]);
  choice.value = "software-1";
  choice.handlers.change();
  for (let turn = 0; turn < 8; turn++) await settled();
  assert.deepEqual(streams.map((one) => one.path).pop(), "/v1/live?gpu=software-1");
  assert.ok(streams[1].closed, "the stream of the other GPU is closed");
  console.log("11 checks");
})();

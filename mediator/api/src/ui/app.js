// The dashboard: views of one second each arrive as server-sent events; weights go back as merge patches.
"use strict";

const KEPT = 300;
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#b2a100"];
const views = [];
const colours = new Map();
const at = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
// What is set of each tenant, by name: weight, quota and limits of memory.
const settings = new Map();
let operator = false;

function colour(tenant) {
  if (!colours.has(tenant)) colours.set(tenant, PALETTE[colours.size % PALETTE.length]);
  return colours.get(tenant);
}

const percent = (part) => (part * 100).toFixed(1) + " %";
function bytes(count) {
  if (count === undefined || count === null) return "–";
  const mib = count / 1048576;
  return mib < 10240 ? mib.toFixed(0) + " MiB" : (mib / 1024).toFixed(1) + " GiB";
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// --- charts -----------------------------------------------------------------------------------------------------------

const styles = () => getComputedStyle(document.documentElement);

function chart(host, series, data, format) {
  const css = styles();
  const axis = { stroke: css.getPropertyValue("--faint"), grid: { stroke: css.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
  const options = {
    width: host.clientWidth,
    height: host.clientHeight,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, format.least)] } },
    axes: [
      { ...axis, size: 26, incrs: [1, 2, 5, 10, 30, 60], values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "now" : tick + " s")) },
      { ...axis, size: 64, values: (_, ticks) => ticks.map(format.tick) },
    ],
    series: [{}, ...series],
    ...format.more,
  };
  host.replaceChildren();
  return new uPlot(options, data, host);
}

// A chart that is made anew when its tenants, its width or the colour scheme change, and else only fed.
class Kept {
  constructor(id, make) {
    this.host = at(id);
    this.make = make;
    this.key = "";
  }
  show(key, data, ...rest) {
    key += "|" + this.host.clientWidth + "|" + dark.matches;
    if (key === this.key) return this.plot.setData(data);
    this.key = key;
    this.plot = this.make(this.host, data, ...rest);
  }
}

const share = { tick: (tick) => Math.round(tick * 100) + " %", least: 1 };

const engineChart = new Kept("chart-engine", (host, data, tenants) => {
  const area = (name, fill) => ({ label: name, stroke: fill, fill: fill, width: 0, points: { show: false } });
  const series = tenants.map((row) => area(row.name, colour(row.tenant)));
  series.push(area("switching", styles().getPropertyValue("--faint")));
  // Areas are drawn from the highest sum down, so that each covers what lies below it.
  return chart(host, series.reverse(), data, { ...share, more: {} });
});

const heldChart = new Kept("chart-held", (host, data, tenants) =>
  chart(host, tenants.map((row) => ({ label: row.name, stroke: colour(row.tenant), width: 2, points: { show: false } })), data, { ...share, more: {} }));

const memoryChart = new Kept("chart-memory", (host, data) => {
  const area = (name, fill) => ({ label: name, stroke: fill, fill: fill, width: 0, points: { show: false } });
  return chart(host, [area("swapped", "#e69f00"), area("resident", "#0072b2")], data, { tick: bytes, least: 1048576, more: {} });
});

// All who were there in the time shown, in the order of their numbers.
function present() {
  const seen = new Map();
  for (const view of views) for (const row of view.tenants) seen.set(row.tenant, row);
  return [...seen.values()].sort((a, b) => a.tenant - b.tenant);
}

function draw() {
  if (views.length === 0) return;
  const last = views[views.length - 1];
  const times = views.map((view) => Math.round((view.at_ns - last.at_ns) / 1e9));
  const tenants = present();
  const key = tenants.map((row) => row.tenant).join();
  const byTenant = views.map((view) => new Map(view.tenants.map((row) => [row.tenant, row])));
  const line = (tenant, figure) => byTenant.map((rows) => (rows.has(tenant) ? rows.get(tenant)[figure] : 0));

  const sums = [];
  let below = views.map(() => 0);
  for (const row of tenants) {
    const own = line(row.tenant, "received");
    below = below.map((sum, index) => sum + own[index]);
    sums.push(below);
  }
  sums.push(below.map((sum, index) => sum + views[index].engine.switching));
  engineChart.show(key, [times, ...sums.reverse()], tenants);
  heldChart.show(key, [times, ...tenants.map((row) => line(row.tenant, "held"))], tenants);
  const legend = tenants.map((row) => {
    const item = element("li");
    const swatch = element("i");
    swatch.style.background = colour(row.tenant);
    item.append(swatch, row.name);
    return item;
  });
  const switching = element("li");
  const grey = element("i");
  grey.style.background = "var(--faint)";
  switching.append(grey, "switching");
  at("legend").replaceChildren(...legend, switching);

  const memory = last.tenants.some((row) => row.memory);
  at("memory-card").hidden = !memory;
  if (memory) {
    const all = (figure) => views.map((view) => view.tenants.reduce((sum, row) => sum + (row.memory ? row.memory[figure] : 0), 0));
    const resident = all("resident_bytes");
    const swapped = all("swapped_bytes");
    memoryChart.show("memory", [times, swapped.map((part, index) => part + resident[index]), resident]);
  }
}

// --- now --------------------------------------------------------------------------------------------------------------

function tiles(view) {
  at("tile-used").textContent = percent(view.engine.used);
  at("tile-switching").textContent = percent(view.engine.switching);
  at("tile-wants").textContent = view.tenants.filter((row) => row.doing !== "idle").length + " of " + view.tenants.length;
  const used = view.engine.used || 1;
  const distance = Math.max(0, ...view.tenants.map((row) => Math.abs(row.received - row.entitled) / used));
  at("tile-error").textContent = (distance * 100).toFixed(1) + " points";
  const ledger = view.ledger;
  const wrong = view.conservation_error_ns !== 0 || (ledger && (ledger.failing || ledger.refused > 0));
  at("tile-ledger").textContent = !ledger ? "none" : ledger.failing ? "fails" : ledger.written;
  at("tile-ledger-text").textContent = !ledger
    ? "no durable ledger"
    : wrong
      ? view.conservation_error_ns + " ns unaccounted, " + ledger.refused + " periods refused"
      : "ledger entries, all time accounted for";
  at("tile-ledger-box").className = "tile " + (wrong ? "bad" : ledger ? "good" : "");
}

function bars(view) {
  const pairs = view.tenants.map((row) => {
    const pair = element("div", "pair");
    const track = element("div", "track");
    for (const figure of ["entitled", "received"]) {
      const bar = element("div", figure);
      bar.style.width = Math.min(100, row[figure] * 100) + "%";
      track.append(bar);
    }
    const figures = element("span", "figures", (row.entitled * 100).toFixed(1) + " / " + (row.received * 100).toFixed(1));
    pair.append(element("span", "", row.name), track, figures);
    return pair;
  });
  at("bars").replaceChildren(...pairs);
}

const lines = new Map();

// A line stays in the page while its tenant lives: a weight that is being typed is not typed over.
function line(row) {
  if (lines.has(row.tenant)) return lines.get(row.tenant);
  const tr = element("tr");
  tr.dataset.tenant = row.name;
  const cells = Array.from({ length: 13 }, (_, index) => element("td", index > 2 ? "n" : ""));
  tr.append(...cells);
  const inputs = FIELDS.map((field) => {
    const input = element("input");
    input.type = "number";
    input.min = field.least;
    if (field.most) input.max = field.most;
    input.placeholder = "max";
    input.setAttribute("aria-label", field.label + " of " + row.name);
    input.addEventListener("change", () => set(row.name, field, input));
    return input;
  });
  const made = { tr, cells, inputs };
  lines.set(row.tenant, made);
  return made;
}

// What an operator sets in the page: an empty field is no limit.
const PERIOD_US = 100000;
const FIELDS = [
  {
    label: "Weight", part: "scheduling", least: 1, most: 10000,
    shown: (row) => row.weight,
    changes: (value) => ({ weight: value }),
  },
  {
    label: "Cap in percent", part: "scheduling", least: 1, most: 100,
    shown: (row) => (row.cap === null ? "" : +(row.cap * 100).toFixed(2)),
    changes: (value) =>
      value === null ? { quota_us: null, period_us: null } : { quota_us: Math.round((PERIOD_US * value) / 100), period_us: PERIOD_US },
  },
  {
    label: "Memory limit in MiB", part: "memory", least: 0,
    shown: (row) => {
      const most = settings.get(row.name)?.limits.max_bytes ?? null;
      return most === null ? "" : most / 1048576;
    },
    changes: (value) => ({ max_bytes: value === null ? null : value * 1048576 }),
  },
];

function rows(view) {
  const here = new Set();
  for (const row of view.tenants) {
    here.add(row.tenant);
    const { tr, cells, inputs } = line(row);
    cells[0].textContent = row.name + (row.processes === null ? "" : " (" + row.processes + " processes)");
    cells[1].textContent = row.account;
    cells[2].textContent = row.doing;
    cells[2].className = row.doing;
    FIELDS.forEach((field, index) => {
      const input = inputs[index];
      if (!operator) {
        const shown = field.shown(row);
        cells[index + 3].textContent = shown === "" ? "max" : shown;
        return;
      }
      if (!input.isConnected) cells[index + 3].replaceChildren(input);
      if (document.activeElement !== input) input.value = field.shown(row);
    });
    const figures = [percent(row.entitled), percent(row.received), percent(row.waiting), percent(row.held)];
    figures.push(bytes(row.memory?.resident_bytes ?? row.held_bytes), bytes(row.memory?.swapped_bytes), row.gpu_seconds.toFixed(2));
    figures.forEach((text, index) => (cells[index + 6].textContent = text));
    if (!tr.isConnected) at("rows").append(tr);
  }
  for (const [tenant, { tr }] of lines) {
    if (here.has(tenant)) continue;
    tr.remove();
    lines.delete(tenant);
  }
}

// One account alone says nothing that its tenants do not say.
function accounts(view) {
  at("accounts-card").hidden = view.accounts.length < 2;
  const lines = view.accounts.map((row) => {
    const tr = element("tr");
    tr.append(element("td", "", row.name));
    const figures = [row.tenants, row.weight, percent(row.entitled), percent(row.received), row.gpu_seconds.toFixed(2)];
    tr.append(...figures.map((text) => element("td", "n", text)));
    return tr;
  });
  at("account-rows").replaceChildren(...lines);
}

function say(text, bad) {
  at("said").textContent = text;
  at("said").className = bad ? "bad" : "";
}

async function set(name, field, input) {
  const value = input.value === "" ? null : input.valueAsNumber;
  input.blur();
  try {
    const path = "/v1/vms/" + encodeURIComponent(name) + "/" + field.part;
    const now = await fetch(path);
    if (!now.ok) throw new Error((await now.json()).detail);
    const answer = await fetch(path, {
      method: "PATCH",
      headers: { "content-type": "application/merge-patch+json", "if-match": now.headers.get("etag") },
      body: JSON.stringify(field.changes(value)),
    });
    if (!answer.ok) throw new Error((await answer.json()).detail);
    await readSettings();
    say(name + ": " + field.label.toLowerCase() + " " + (value ?? "max") + " from the next decision on.");
  } catch (error) {
    say(field.label + " of " + name + " not set: " + error.message, true);
  }
}

const LISTED = 1000;

// Limits are in no view: they are read when a tenant appears and after a change.
async function readSettings() {
  const answer = await fetch("/v1/vms?limit=" + LISTED);
  if (!answer.ok) return;
  settings.clear();
  for (const vm of (await answer.json()).items) settings.set(vm.name, vm);
}

// --- stream -----------------------------------------------------------------------------------------------------------

function add(view) {
  views.push(view);
  if (views.length > KEPT) views.shift();
}

function show() {
  const last = views[views.length - 1];
  if (!last) return;
  tiles(last);
  bars(last);
  rows(last);
  accounts(last);
  draw();
}

function link(text, state) {
  at("link").textContent = text;
  at("link").className = "tag " + state;
}

const RETRY_MS = 1000;

// Figures of a daemon that is gone are old: the page dims until another answers.
function gone(text) {
  document.body.classList.add("gone");
  link(text, "bad");
}

// The GPUs to choose from, if there are several; returns the query of the chosen one.
function choose(gpus) {
  const list = at("gpu-choice");
  const chosen = gpus.includes(list.value) ? list.value : gpus[0];
  list.replaceChildren(...gpus.map((gpu) => new Option(gpu, gpu, false, gpu === chosen)));
  list.hidden = gpus.length < 2;
  return "?gpu=" + encodeURIComponent(chosen);
}

let stream = null;

async function begin() {
  const host = await (await fetch("/v1/host")).json();
  document.title = host.node + " - Turnstile";
  at("host-name").textContent = host.node;
  at("gpu-name").textContent = host.gpu_model + ", policy " + host.policy;
  const of = choose(host.gpus);
  operator = host.role === "operator";
  at("role").textContent = host.role;
  at("role").hidden = false;
  views.length = 0;
  for (const view of await (await fetch("/v1/live/history" + of)).json()) add(view);
  await readSettings();
  show();
  if (stream) stream.close();
  const own = stream = new EventSource("/v1/live" + of);
  own.addEventListener("open", () => {
    document.body.classList.remove("gone");
    link("live", "good");
  });
  own.addEventListener("error", () => {
    own.close();
    gone("no connection, trying again");
    setTimeout(start, RETRY_MS);
  });
  own.addEventListener("view", async (event) => {
    const view = JSON.parse(event.data);
    if (settings.size < LISTED && view.tenants.some((row) => !settings.has(row.name))) await readSettings();
    add(view);
    show();
  });
}

function start() {
  begin().catch((error) => {
    gone("no connection, trying again");
    say("The daemon did not answer: " + error.message, true);
    setTimeout(start, RETRY_MS);
  });
}

at("gpu-choice").addEventListener("change", start);
addEventListener("resize", draw);
dark.addEventListener("change", draw);
start();

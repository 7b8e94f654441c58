// Asks for the last view once a second and shows it. Says so where none comes, and tries again.

import { bands, follow, line } from "./chart.js";
import { Flows } from "./flows.js";
import * as panels from "./panels.js";
import { Picture } from "./picture.js";
import { bitRate, duration, rate, say } from "./units.js";

const ASK_MS = 1000;
const RETRY_MS = 2000;
/** The monitor makes a view a second. After so long without one it is stuck, and the page says so. */
const STALE_MS = 6000;
const MOMENTS_MAX = 300;

const find = (id) => document.getElementById(id);
const picture = new Picture(find("picture"), find("picture-caption"));
const flows = new Flows((key) => picture.point(key));
let moments = [];
let last = null;
let lastCame = 0;
let needsHistory = true;
let isPaused = false;

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(4000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function setState(state, text) {
  document.body.dataset.state = state;
  say(find("state"), text);
}

function showCharts() {
  line(find("chart-bits"), moments, "bits", "bits", bitRate);
  line(find("chart-packets"), moments, "packets", "packets", (value) => `${rate(value)} packets/s`);
  const names = (last?.protocols ?? []).slice(0, 8).map((protocol) => protocol.name);
  bands(find("chart-protocols"), moments, names, bitRate);
}

function remember(view) {
  if (moments.length > 0 && moments[moments.length - 1].at_ms >= view.at_ms) return;
  moments.push({
    at_ms: view.at_ms,
    packets: view.rates.packets,
    bits: view.rates.bits,
    lost: view.lost_per_second,
    protocols: view.protocols.slice(0, 8).map((protocol) => [protocol.name, protocol.rates.bits]),
  });
  moments = moments.slice(-MOMENTS_MAX);
}

function show(view) {
  const names = view.sources.map((source) => source.name).join(", ");
  say(find("sources"), `${names || "no source"}, for ${duration(view.uptime_s)}`);
  panels.figures(view);
  panels.loss(view);
  panels.talkers(view);
  panels.protocols(view);
  panels.health(view);
  panels.exported(view);
  flows.update(view);
  picture.update(view);
  showCharts();
  // For tests and for whoever profiles.
  performance.clearMarks();
  performance.mark(`shown-${view.number}`);
}

/** One question, and when to ask again. */
async function look() {
  try {
    const view = await ask("/view.json");
    if (last && view.number < last.number) needsHistory = true;
    if (needsHistory) {
      moments = await ask("/history.json");
      needsHistory = false;
    }
    if (view.number !== last?.number) lastCame = Date.now();
    remember(view);
    const isNew = view.number !== last?.number;
    if (!isPaused) {
      last = view;
      if (isNew && view.number > 0) show(view);
    }
    picture.pause(isPaused || view.is_over);
    if (view.is_over) setState("ended", "The monitor has ended");
    else if (isPaused) setState("paused", "Paused");
    else if (view.number === 0) setState("waits", "Waits for the first numbers");
    else if (Date.now() - lastCame > STALE_MS) setState("stale", "The monitor sends nothing new");
    else setState("live", "Live");
    return view.is_over ? RETRY_MS : ASK_MS;
  } catch (error) {
    needsHistory = true;
    picture.pause(true);
    setState("lost", "Not reachable, trying again");
    return RETRY_MS;
  }
}

async function run() {
  for (;;) {
    const pause = await look();
    await new Promise((done) => { setTimeout(done, pause); });
  }
}

find("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  find("pause").setAttribute("aria-pressed", String(isPaused));
  say(find("pause"), isPaused ? "Go on" : "Pause");
  picture.pause(isPaused);
  setState(isPaused ? "paused" : "live", isPaused ? "Paused" : "Live");
});
// A tab in the background is asked to wait: what it missed, the server knows.
document.addEventListener("visibilitychange", () => { if (!document.hidden) needsHistory = true; });
for (const id of ["chart-bits", "chart-packets"]) follow(find(id), showCharts);
new ResizeObserver(showCharts).observe(find("chart-bits"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
run();

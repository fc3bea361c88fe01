/** Reads /status once a second and shows it: totals as they are, rates as differences. */
import { call } from "./api.js";
import { createPlot, drawSpark } from "./charts.js";
import { startChat } from "./chat.js";

const element = (id) => document.querySelector(`#${id}`);
const show = (id, text) => {
  element(id).textContent = text;
};
const grouped = (n) => Math.round(n).toLocaleString("en-US");
const percent = (ratio) => (Number.isFinite(ratio) ? `${(100 * ratio).toFixed(1)}%` : "–");
const gib = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`);
const milliseconds = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`);

const ratePlot = createPlot(element("plot-rate"), [{ label: "tok/s", colour: "blue", format: (v) => v.toFixed(0) }]);
const kPlot = createPlot(element("plot-k"), [
  { label: "draft length", colour: "amber", step: true, format: (v) => v.toFixed(1) },
  { label: "acceptance length", colour: "green", step: true, format: (v) => v.toFixed(2) },
]);
const rates = [];
/** Row shapes by how many of the polls saw them. */
const shapes = new Map();
let before;

startChat();
void poll();

async function poll() {
  for (;;) {
    try {
      const response = await call("/status");
      update(await response.json());
    } catch {
      showState("offline", "no answer from the server");
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function update(status) {
  const now = { time: performance.now() / 1000, status };
  const { engine, info } = status;
  showState(status.state, status.state === "ready" ? "serving" : status.reason || status.state);
  showModel(status);
  showBanner(engine);
  if (before !== undefined) showRates(before, now);
  showTiles(status);
  showPositions(engine.draft);
  showSteps(engine);
  showSlots(engine.slots, info?.nCtxSeq ?? 0);
  showTotals(status);
  before = now;
}

function showState(state, text) {
  const line = element("state");
  line.dataset.state = state;
  line.querySelector(".text").textContent = text;
}

function showModel({ model, info }) {
  const name = document.createElement("b");
  name.textContent = model;
  element("model").replaceChildren(name, info === null ? "" : ` on ${info.device}`);
  document.title = `${model} · Foretoken`;
}

function showBanner(engine) {
  element("banner").hidden = !engine.isSynthetic;
  element("banner").textContent = "Acceptance is drawn from set rates (--spec-synth-rates): what this server writes is not model text.";
}

/** Rates between two polls. Counters start anew with the engine: a negative difference is a restart. */
function showRates(last, now) {
  const seconds = now.time - last.time;
  const [a, b] = [last.status, now.status];
  const rate = Math.max(0, b.nTokensDelivered - a.nTokensDelivered) / seconds;
  rates.push(rate);
  show("rate", grouped(rate));
  drawSpark(element("rate-spark"), rates);
  ratePlot.push(now.time, rate);
  const nDrafts = b.engine.draft.nDrafts - a.engine.draft.nDrafts;
  const nSteps = b.engine.stepsAtK.map((n, k) => n - (a.engine.stepsAtK[k] ?? 0));
  const nAll = nSteps.reduce((x, y) => x + y, 0);
  const meanK = nAll > 0 ? nSteps.reduce((sum, n, k) => sum + n * k, 0) / nAll : null;
  const meanLength = nDrafts > 0 ? 1 + (b.engine.draft.nAccepted - a.engine.draft.nAccepted) / nDrafts : nAll > 0 ? 1 : null;
  kPlot.push(now.time, meanK, meanLength);
}

function showTiles({ engine, info, ttftMs, requests, httpRssBytes }) {
  const { draft, slots } = engine;
  show("k", info === null ? "–" : String(engine.nDraftNow));
  show("gate", info?.nMax === 0 ? "no draft head" : engine.gateReason === "" ? "" : `gate: ${engine.gateReason}`);
  show("mal", draft.nDrafts > 0 ? (1 + draft.nAccepted / draft.nDrafts).toFixed(2) : "–");
  show("acceptance", draft.nDrafted > 0 ? `${percent(draft.nAccepted / draft.nDrafted)} of drafts accepted` : "no drafts yet");
  show("ttft", ttftMs === null ? "–" : milliseconds(ttftMs.p50));
  show("ttft95", ttftMs === null ? "no requests yet" : `median; p95 ${milliseconds(ttftMs.p95)}, last ${ttftMs.n}`);
  const nBusy = slots.filter((slot) => slot.phase !== "idle").length;
  element("busy").innerHTML = `${nBusy} <small>of ${slots.length}</small>`;
  show("queue", `${engine.nQueued} waiting, ${requests.active} open`);
  show("memory", gib(engine.rssBytes + httpRssBytes));
  show("memory-parts", engine.deviceUsedBytes === undefined ? `engine ${gib(engine.rssBytes)}, HTTP ${gib(httpRssBytes)}` : `host; device ${gib(engine.deviceUsedBytes)}`);
}

function bar(label, ratio, value, { tick, isNow } = {}) {
  const row = document.createElement("div");
  row.className = isNow ? "bar now" : "bar";
  const [name, track, fill, text] = ["span", "span", "span", "span"].map((tag) => document.createElement(tag));
  name.className = "label";
  name.textContent = label;
  track.className = "track";
  fill.className = "fill";
  fill.style.width = `${100 * Math.min(1, ratio)}%`;
  track.append(fill);
  if (tick !== undefined) {
    const mark = document.createElement("span");
    mark.className = "tick";
    mark.style.left = `${100 * Math.min(1, tick)}%`;
    track.append(mark);
  }
  text.className = "value";
  text.textContent = value;
  row.append(name, track, text);
  return row;
}

function empty(text) {
  const line = document.createElement("p");
  line.className = "empty";
  line.textContent = text;
  return line;
}

function showPositions(draft) {
  const rows = draft.acceptedAt.map((nAccepted, i) => {
    const nReached = draft.reachedAt[i] ?? 0;
    return bar(`position ${i}`, nAccepted / Math.max(1, draft.nDrafts), percent(nAccepted / draft.nDrafts), { tick: nReached > 0 ? nAccepted / nReached : undefined });
  });
  element("positions").replaceChildren(...(draft.nDrafts > 0 ? rows : [empty("No drafts were verified yet.")]));
  show("positions-note", draft.nDrafts > 0 ? `Bar: unconditional, of all ${grouped(draft.nDrafts)} drafts. Line: conditional, of the drafts that got that far.` : "");
}

function showSteps(engine) {
  const total = engine.stepsAtK.reduce((a, b) => a + b, 0);
  const rows = engine.stepsAtK.map((n, k) => bar(k === 0 ? "0 (plain)" : String(k), n / Math.max(1, total), grouped(n), { isNow: k === engine.nDraftNow && total > 0 }));
  element("steps").replaceChildren(...(total > 0 ? rows : [empty("No steps yet.")]));
  show("shape", engine.rowShape === "" ? "none" : engine.rowShape);
  if (engine.slots.some((slot) => slot.phase === "decode")) shapes.set(engine.rowShape, (shapes.get(engine.rowShape) ?? 0) + 1);
  const most = [...shapes].toSorted((a, b) => b[1] - a[1]).slice(0, 4);
  const nSeen = [...shapes.values()].reduce((a, b) => a + b, 0);
  show("shapes", nSeen === 0 ? "" : `Row shapes seen once a second: ${most.map(([shape, n]) => `${shape} (${percent(n / nSeen)})`).join(", ")}.`);
}

function showSlots(slots, nCtx) {
  element("slots").replaceChildren(
    ...slots.map((slot) => {
      const cell = document.createElement("div");
      cell.className = "slot";
      cell.dataset.phase = slot.phase;
      const used = slot.phase === "idle" ? 0 : slot.nPast / Math.max(1, nCtx);
      cell.innerHTML = `<div class="top"><span>${Number(slot.slot)}</span><span class="phase"></span></div><div class="track"><span class="fill"></span></div>`;
      cell.querySelector(".phase").textContent = slot.phase === "decode" ? `${slot.nOutput} tokens` : slot.phase;
      cell.querySelector(".fill").style.width = `${100 * Math.min(1, used)}%`;
      cell.title = slot.phase === "idle" ? "free" : `${slot.nPast} of ${nCtx} positions`;
      return cell;
    }),
  );
}

function showTotals({ engine, requests, restarts, uptimeS, info, nTokensDelivered }) {
  const nFailures = Object.values(restarts.nFailures).reduce((a, b) => a + b, 0);
  const hours = Math.floor(uptimeS / 3600);
  const rows = [
    ["Running for", hours > 0 ? `${hours} h ${Math.floor((uptimeS % 3600) / 60)} min` : `${Math.floor(uptimeS / 60)} min ${uptimeS % 60} s`],
    ["Requests answered", grouped(requests.ok)],
    ["Refused, failed, left", `${grouped(requests.rejected)}, ${grouped(requests.failed)}, ${grouped(requests.disconnected + requests.slow_client)}`],
    ["Tokens delivered", grouped(nTokensDelivered)],
    ["Prompt tokens read", `${grouped(engine.nPromptTokens)}${engine.nCachedTokens > 0 ? ` (${grouped(engine.nCachedTokens)} from cache)` : ""}`],
    ["Engine steps", grouped(engine.nSteps)],
    ["Engine restarts", nFailures === 0 ? "none" : `${nFailures}, ${restarts.nRequestsLost} requests lost`],
    ["Loaded", info === null ? "–" : `${gib(info.loadedBytes)} in ${(info.loadMs / 1000).toFixed(1)} s`],
  ];
  element("totals").replaceChildren(
    ...rows.flatMap(([name, value]) => {
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      dt.textContent = name;
      dd.textContent = value;
      return [dt, dd];
    }),
  );
}

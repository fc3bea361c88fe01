/**
 * Prometheus text. Engine counters carry llama-server's names after the prefix, so that its dashboards fit; the
 * spec_decode ones count as `DraftStats` says: per position unconditional, tokens after a stop left out.
 */
import type { EngineSnapshot } from "../engine/request.ts";
import type { ServerContext } from "./server-context.ts";
import type { Histogram } from "./server-stats.ts";

type Labels = Readonly<Record<string, string | number>>;
type Sample = readonly [value: number, labels?: Labels];

const PREFIX = "foretoken:";

class MetricsWriter {
  readonly #lines: string[] = [];

  add(name: string, type: "counter" | "gauge", help: string, ...samples: readonly Sample[]): void {
    this.#head(name, type, help);
    for (const [value, labels] of samples) this.#line(name, value, labels);
  }

  addHistogram(name: string, help: string, histogram: Histogram): void {
    this.#head(name, "histogram", help);
    let nBelow = 0;
    for (const [i, bound] of histogram.bounds.entries()) {
      nBelow += histogram.counts[i] as number;
      this.#line(`${name}_bucket`, nBelow, { le: bound });
    }
    this.#line(`${name}_bucket`, histogram.n, { le: "+Inf" });
    this.#line(`${name}_sum`, histogram.sum);
    this.#line(`${name}_count`, histogram.n);
  }

  toString(): string {
    return `${this.#lines.join("\n")}\n`;
  }

  #head(name: string, type: string, help: string): void {
    this.#lines.push(`# HELP ${PREFIX}${name} ${help}`, `# TYPE ${PREFIX}${name} ${type}`);
  }

  #line(name: string, value: number, labels: Labels = {}): void {
    const inside = Object.entries(labels).map(([key, label]) => `${key}="${String(label).replace(/["\\\n]/g, "\\$&")}"`);
    this.#lines.push(`${PREFIX}${name}${inside.length === 0 ? "" : `{${inside.join(",")}}`} ${value}`);
  }
}

export function metricsText({ engine, stats }: ServerContext): string {
  const out = new MetricsWriter();
  const snapshot = engine.snapshot();
  addEngine(out, snapshot);
  addSpeculation(out, snapshot);
  out.add("engine_up", "gauge", "1 when the engine serves requests.", [engine.state === "ready" ? 1 : 0]);
  out.add("engine_starts_total", "counter", "Engine processes that became ready.", [engine.counters.nStarts]);
  out.add("engine_failures_total", "counter", "Ends of the engine process that nobody asked for, by cause.", ...Object.entries(engine.counters.nFailures).map(([cause, n]): Sample => [n, { cause }]));
  out.add("engine_requests_lost_total", "counter", "Requests that ended because the engine process ended.", [engine.counters.nRequestsLost]);
  out.add("http_requests_active", "gauge", "Generation requests that have not ended.", [stats.nActive]);
  out.add("http_requests_total", "counter", "Generation requests by outcome.", ...Object.entries(stats.outcomes).map(([outcome, n]): Sample => [n, { outcome }]));
  out.add("tokens_delivered_total", "counter", "Tokens passed on to clients.", [stats.nTokensDelivered]);
  out.addHistogram("time_to_first_token_seconds", "From the request to its first token, queue wait included.", stats.ttftS);
  out.addHistogram("time_per_output_token_seconds", "Per request: time after the first token over the tokens after it.", stats.tpotS);
  out.addHistogram("request_duration_seconds", "From the request to the end of its answer.", stats.durationS);
  out.add("http_resident_bytes", "gauge", "Resident memory of the HTTP process.", [process.memoryUsage.rss()]);
  return out.toString();
}

function addEngine(out: MetricsWriter, s: EngineSnapshot): void {
  const nBusy = s.slots.filter((slot) => slot.phase !== "idle").length;
  out.add("prompt_tokens_total", "counter", "Prompt tokens processed.", [s.nPromptTokens]);
  out.add("prompt_tokens_cached_total", "counter", "Prompt tokens taken from the cache.", [s.nCachedTokens]);
  out.add("prompt_seconds_total", "counter", "Time in prompt steps.", [s.prefillMs / 1000]);
  out.add("tokens_predicted_total", "counter", "Tokens generated.", [s.nOutputTokens]);
  out.add("tokens_predicted_seconds_total", "counter", "Time in decode steps.", [s.decodeMs / 1000]);
  out.add("steps_total", "counter", "Engine steps.", [s.nSteps]);
  out.add("requests_total", "counter", "Requests that got a slot.", [s.nRequests]);
  out.add("requests_processing", "gauge", "Slots at work.", [nBusy]);
  out.add("requests_deferred", "gauge", "Requests waiting for a slot.", [s.nQueued]);
  out.add("slots", "gauge", "Slots.", [s.slots.length]);
  out.add("engine_resident_bytes", "gauge", "Resident memory of the engine process.", [s.rssBytes]);
  if (s.deviceUsedBytes !== undefined) out.add("engine_device_bytes", "gauge", "Device memory in use.", [s.deviceUsedBytes]);
}

function addSpeculation(out: MetricsWriter, s: EngineSnapshot): void {
  const { draft } = s;
  const byPosition = (counts: readonly number[]): Sample[] => counts.map((n, position) => [n, { position }]);
  out.add("spec_decode_num_drafts_total", "counter", "Verify steps with a draft, per sequence.", [draft.nDrafts]);
  out.add("spec_decode_num_draft_tokens_total", "counter", "Draft tokens proposed.", [draft.nDrafted]);
  out.add("spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted.", [draft.nAccepted]);
  out.add("spec_decode_num_accepted_tokens_per_pos_total", "counter", "Drafts whose token at the position was accepted.", ...byPosition(draft.acceptedAt));
  out.add("spec_decode_num_reached_tokens_per_pos_total", "counter", "Drafts whose position was compared: all before it were accepted.", ...byPosition(draft.reachedAt));
  out.add("spec_decode_draft_length", "gauge", "Draft length of the last step.", [s.nDraftNow]);
  out.add("spec_decode_steps_total", "counter", "Decode steps by the draft length chosen.", ...s.stepsAtK.map((n, k): Sample => [n, { k }]));
  out.add("spec_decode_synthetic", "gauge", "1 when acceptance is drawn from set rates and the output is not model text.", [s.isSynthetic ? 1 : 0]);
}

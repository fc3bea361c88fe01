/** What the server shows of itself: /v1/models, /props, /slots, and /status for the dashboard. */
import { quantile } from "../util/stats.ts";
import type { ServerContext } from "./server-context.ts";
import { fingerprint } from "./reply-format.ts";

const startedS = Math.floor(Date.now() / 1000);

export function modelList({ settings, engine }: ServerContext): { readonly object: "list"; readonly data: readonly [object] } {
  const { info } = engine;
  const meta = info === undefined ? null : { n_vocab: info.nVocab, n_ctx: info.nCtxSeq, path: info.modelPath };
  return { object: "list", data: [{ id: settings.modelName, object: "model", created: startedS, owned_by: "foretoken", meta }] };
}

export function props({ settings, engine, text }: ServerContext): object {
  const { info } = engine;
  return {
    default_generation_settings: { n_ctx: info?.nCtxSeq ?? 0, speculative: (info?.nMax ?? 0) > 0, "speculative.n_max": info?.nMax ?? 0 },
    total_slots: info?.nSlots ?? 0,
    model_alias: settings.modelName,
    model_path: info?.modelPath ?? "",
    head_paths: info?.headPaths ?? [],
    modalities: { vision: false, video: false, audio: false },
    endpoint_slots: settings.hasSlots,
    endpoint_metrics: settings.hasMetrics,
    chat_template: text.template.source,
    chat_template_caps: { tools: text.template.knowsTools, reasoning: text.template.knowsReasoning, tool_call_style: text.template.toolCallStyle },
    bos_token: text.tokenizer.bosText,
    eos_token: text.tokenizer.eosText,
    build_info: fingerprint,
    library: info?.library ?? "",
    device: info?.device ?? "",
    loaded_bytes: info?.loadedBytes ?? 0,
    load_ms: info?.loadMs ?? 0,
    is_synthetic: engine.snapshot().isSynthetic,
  };
}

export interface SlotView {
  readonly id: number;
  readonly id_task: number;
  readonly n_ctx: number;
  readonly speculative: boolean;
  readonly is_processing: boolean;
  readonly state: string;
  readonly n_prompt_tokens: number;
  readonly n_past: number;
  readonly next_token: readonly [{ readonly n_decoded: number }];
}

export function slots({ engine }: ServerContext): readonly SlotView[] {
  return engine.snapshot().slots.map((slot) => ({
    id: slot.slot,
    id_task: slot.requestId ?? -1,
    n_ctx: engine.info?.nCtxSeq ?? 0,
    speculative: (engine.info?.nMax ?? 0) > 0,
    is_processing: slot.phase !== "idle",
    state: slot.phase,
    n_prompt_tokens: slot.nPrompt,
    n_past: slot.nPast,
    next_token: [{ n_decoded: slot.nOutput }],
  }));
}

/** The last engine snapshot and the server's own counts, as the dashboard reads them once a second. */
export function status({ settings, engine, stats }: ServerContext): object {
  const { info } = engine;
  const ttft = stats.recentTtftMs;
  return {
    model: settings.modelName,
    state: engine.state,
    reason: engine.stateReason,
    uptimeS: Math.floor(Date.now() / 1000) - startedS,
    info: info ?? null,
    engine: engine.snapshot(),
    restarts: engine.counters,
    requests: { active: stats.nActive, ...stats.outcomes },
    nTokensDelivered: stats.nTokensDelivered,
    ttftMs: ttft.length === 0 ? null : { p50: quantile(ttft, 0.5), p95: quantile(ttft, 0.95), n: ttft.length },
    httpRssBytes: process.memoryUsage.rss(),
  };
}

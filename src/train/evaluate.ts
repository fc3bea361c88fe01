/**
 * Online judgement: the engine serves the head on libllama and counts what it accepts. Training accuracy does not tell
 * it (the reports had 0.994 top-1 in training and 65.8% deployed), so promotion looks at nothing else.
 */
import { engineOptions } from "../config/engine-options.ts";
import { greedySampling, type EngineEvent, type FinishEvent, type GenerateRequest } from "../engine/request.ts";
import { openEngine } from "../llama/open-engine.ts";
import { createChatText } from "./chat-text.ts";
import type { Half, Prompt } from "./prompts.ts";

export interface EvaluateOptions {
  readonly modelPath: string;
  /** One head drafts every position, several draft one position each; none: the head in the model file. */
  readonly headPaths: readonly string[];
  readonly prompts: readonly Prompt[];
  readonly nMax: number;
  /** As `serve --spec-draft-vocab` takes it. */
  readonly draftVocab?: string;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly parallel: number;
  readonly threads: number;
  readonly device: string | undefined;
  readonly llamaDir: string | undefined;
  readonly signal: AbortSignal;
  readonly onProgress?: (nDone: number, nTotal: number) => void;
}

export interface Acceptance {
  readonly nPrompts: number;
  readonly nTokens: number;
  readonly nDrafts: number;
  readonly nDrafted: number;
  readonly nAccepted: number;
  /** Drafts accepted at each position over drafts made: unconditional. */
  readonly rates: readonly number[];
  /** Mean acceptance length: 1 + accepted / drafts, the tokens a verify step yields. */
  readonly tokensPerDraft: number;
}

export interface Evaluation {
  readonly headPaths: readonly string[];
  readonly nMax: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly halves: Readonly<Partial<Record<Half, Acceptance>>>;
  readonly wallMs: number;
}

/** @throws {UserError} for files that do not fit together, or a prompt longer than the context. */
export async function evaluateHead(options: EvaluateOptions): Promise<Evaluation> {
  const startMs = performance.now();
  const finished = new Map<number, FinishEvent>();
  const sink = (events: readonly EngineEvent[]): void => {
    for (const event of events) if (event.kind === "finish") finished.set(event.id, event);
  };
  const { engine, backend } = openEngine(
    engineOptions.parse({
      model: options.modelPath,
      parallel: options.parallel,
      ctxSize: options.parallel * 1024,
      threads: options.threads,
      specType: "draft-mtp",
      specDraftModel: [...options.headPaths],
      specDraftNMax: options.nMax,
      ...(options.draftVocab === undefined ? {} : { specDraftVocab: options.draftVocab }),
      specGate: "fixed",
      ...(options.device === undefined ? {} : { device: options.device }),
      ...(options.llamaDir === undefined ? {} : { llamaDir: options.llamaDir }),
    }),
    { sink, maxQueue: options.prompts.length },
  );
  try {
    const { vocab } = backend;
    const chat = (): ReturnType<typeof createChatText> => createChatText(vocab.chatTemplate, { bos: vocab.bos?.text ?? "", eos: vocab.eos?.text ?? "" });
    const tokens = ({ messages, prompt }: Prompt): Int32Array =>
      messages === undefined ? vocab.tokenize(prompt ?? "", { addSpecial: true }) : vocab.tokenize(chat().render(messages), { addSpecial: true, parseSpecial: true });
    options.prompts.forEach((prompt, id) => engine.submit(request(id, tokens(prompt), options)));
    while (engine.step()) {
      options.signal.throwIfAborted();
      options.onProgress?.(finished.size, options.prompts.length);
      await new Promise((resolve) => setImmediate(resolve));
    }
  } finally {
    engine.close();
    backend.close();
  }
  for (const event of finished.values()) if (event.reason === "error") throw new Error(`request ${event.id}: ${event.message ?? "no reason given"}`);
  const { headPaths, nMax, maxTokens, temperature, seed, prompts } = options;
  const halves = Object.fromEntries(
    (["chat", "code"] as const).flatMap((half) => {
      const events = prompts.flatMap((prompt, id) => (prompt.half === half ? [finished.get(id) as FinishEvent] : []));
      return events.length === 0 ? [] : [[half, acceptanceOf(events, nMax)]];
    }),
  );
  return { headPaths, nMax, maxTokens, temperature, seed, halves, wallMs: performance.now() - startMs };
}

function request(id: number, prompt: Int32Array, { maxTokens, temperature, seed }: EvaluateOptions): GenerateRequest {
  return {
    id,
    prompt,
    maxTokens,
    sampling: { ...greedySampling, temperature, seed: seed + id },
    stop: [],
    ignoreEos: false,
    nLogprobs: undefined,
    grammar: undefined,
    nMax: undefined,
    cachePrompt: false,
  };
}

/** Sums the counts of requests; a rate of a half is accepted over drafts, so long answers weigh more. */
export function acceptanceOf(events: readonly Pick<FinishEvent, "usage" | "draft">[], nMax: number): Acceptance {
  const sum = (of: (event: Pick<FinishEvent, "usage" | "draft">) => number): number => events.reduce((total, event) => total + of(event), 0);
  const nDrafts = sum((e) => e.draft.nDrafts);
  const nAccepted = sum((e) => e.draft.nAccepted);
  return {
    nPrompts: events.length,
    nTokens: sum((e) => e.usage.nOutput),
    nDrafts,
    nDrafted: sum((e) => e.draft.nDrafted),
    nAccepted,
    rates: Array.from({ length: nMax }, (_, i) => (nDrafts === 0 ? 0 : sum((e) => e.draft.acceptedAt[i] ?? 0) / nDrafts)),
    tokensPerDraft: nDrafts === 0 ? 1 : 1 + nAccepted / nDrafts,
  };
}

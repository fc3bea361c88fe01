/** Does a model load and speak? In a child, so that an abort is an answer too. */
import { runInChild } from "./child.ts";

export interface TryModelRequest {
  readonly modelPath: string;
  readonly prompt: string;
  readonly nTokens: number;
  readonly llamaDir: string | undefined;
}

export interface TryModelResult {
  /** Greedy continuation of the prompt. */
  readonly text: string;
  readonly device: string;
  readonly loadMs: number;
  /** Median time of a decode of one row. */
  readonly decodeMs: number;
}

/** @throws {UserError} when it does not load, or how libllama died. */
export async function tryModel(request: TryModelRequest): Promise<TryModelResult> {
  return runInChild<TryModelRequest, TryModelResult>({ entry: "try-model-child", request, what: `trying ${request.modelPath}` });
}

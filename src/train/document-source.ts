/**
 * The documents of a capture, in a fixed order: document i is a function of the prompt file, the seed and i, so that a
 * resumed capture goes on where it was and a repeated one gives the same documents.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError } from "../util/errors.ts";
import { Rng } from "../util/rng.ts";
import { fillTemplate, isPrompt, type Half, type Prompt, type PromptLine } from "./prompts.ts";

/** How a document begins. */
export type Opening =
  | { readonly kind: "given"; readonly prompt: Prompt }
  /** The model samples `nSampled` tokens on from the text. */
  | { readonly kind: "start"; readonly text: string; readonly nSampled: number }
  | { readonly kind: "user-turn" };

export interface DocumentPlan {
  readonly index: number;
  readonly half: Half;
  readonly opening: Opening;
  /** Of the continuation; 0 is greedy. */
  readonly temperature: number;
  readonly seed: number;
  /** For validation, never for training. */
  readonly isHeldOut: boolean;
}

export interface SourceOptions {
  readonly seed: number;
  /** Share of continuations that are sampled, at `temperature`. */
  readonly sampledShare: number;
  readonly temperature: number;
  /** Share of documents that are chats, when the prompts give both kinds. Chats are shorter: 0.7 is about half of the tokens. */
  readonly chatShare: number;
  /** Share of documents that go to validation. */
  readonly heldOutShare: number;
  /** Range of tokens that a `start` is sampled on. */
  readonly startTokens: readonly [number, number];
}

export interface DocumentSource {
  /** Documents there are; Infinity when the model writes prompts itself. */
  readonly size: number;
  plan(index: number): DocumentPlan;
}

/** @throws {UserError} when the lines give no document. */
export function createDocumentSource(lines: readonly PromptLine[], options: SourceOptions): DocumentSource {
  const prompts = shuffled([...lines.filter(isPrompt), ...expandTemplates(lines)], options.seed);
  const byHalf = { chat: prompts.filter((p) => p.half === "chat"), code: prompts.filter((p) => p.half === "code") };
  const starts = lines.filter((line) => line.kind === "start");
  const canWriteUserTurns = lines.some((line) => line.kind === "user-turn");
  const halves = (["chat", "code"] as const).filter((h) => byHalf[h].length > 0 || starts.some((s) => s.half === h) || (h === "chat" && canWriteUserTurns));
  if (halves.length === 0) throw new UserError("the prompt files give no document: they need prompts, templates with tasks, starts, or a user-turn line");
  const isEndless = starts.length > 0 || canWriteUserTurns;
  const openingOf = (half: Half, i: number, rng: Rng): Opening => {
    const given = byHalf[half];
    const ownStarts = starts.filter((s) => s.half === half);
    const canInvent = ownStarts.length > 0 || (half === "chat" && canWriteUserTurns);
    // Given prompts take every second place while they last; what the model writes itself takes the others.
    const at = canInvent ? Math.floor(i / 2) : i;
    if (at < given.length && (!canInvent || i % 2 === 0)) return { kind: "given", prompt: given[at] as Prompt };
    if (half === "chat" && canWriteUserTurns) return { kind: "user-turn" };
    const [low, high] = options.startTokens;
    return { kind: "start", text: (ownStarts[rng.below(ownStarts.length)] as { text: string }).text, nSampled: low + rng.below(high - low + 1) };
  };
  const share = halves.length === 2 ? options.chatShare : halves[0] === "chat" ? 1 : 0;
  const placeOf = (index: number): { half: Half; ordinal: number } => {
    const nChats = Math.floor(index * share);
    const isChat = Math.floor((index + 1) * share) > nChats;
    return isChat ? { half: "chat", ordinal: nChats } : { half: "code", ordinal: index - nChats };
  };
  return {
    size: isEndless ? Infinity : prompts.length,
    plan(index) {
      const rng = new Rng(options.seed * 1_000_003 + index);
      const { half, ordinal } = placeOf(index);
      const opening = openingOf(half, ordinal, rng);
      const isHeldOut = rng.uniform() < options.heldOutShare;
      return { index, half, opening, temperature: rng.uniform() < options.sampledShare ? options.temperature : 0, seed: rng.uint32(), isHeldOut };
    },
  };
}

function expandTemplates(lines: readonly PromptLine[]): Prompt[] {
  const tasks = lines.filter((line) => line.kind === "task");
  return lines.flatMap((line): Prompt[] => {
    if (line.kind !== "template") return [];
    return tasks
      .filter((task) => task.tasks === line.tasks)
      .map((task) => ({ kind: "prompt", half: "chat", messages: [{ role: "user", content: fillTemplate(line.template, task) }], template: line.template, task: task.task }));
  });
}

function shuffled<T>(items: T[], seed: number): T[] {
  return new Rng(seed).shuffle(items);
}

const mostTextBytes = 1 << 20;

/** Every text file below a folder as starts, cut into pieces of a few hundred characters at line ends. */
export function startsFromFolder(folder: string, pieceChars = 600): PromptLine[] {
  const entries = fs.readdirSync(folder, { recursive: true, withFileTypes: true }).filter((e) => e.isFile());
  const starts = entries.toSorted((a, b) => (path.join(a.parentPath, a.name) < path.join(b.parentPath, b.name) ? -1 : 1)).flatMap((entry): PromptLine[] => {
    const bytes = fs.readFileSync(path.join(entry.parentPath, entry.name)).subarray(0, mostTextBytes);
    if (bytes.includes(0)) return [];
    return pieces(bytes.toString("utf8"), pieceChars).map((text) => ({ kind: "prompt", half: "code", prompt: text }));
  });
  if (starts.length === 0) throw new UserError(`--from-text ${folder}: no text file in it`);
  return starts;
}

function pieces(text: string, size: number): string[] {
  const out: string[] = [];
  for (let at = 0; at < text.length; ) {
    const end = at + size >= text.length ? text.length : Math.max(text.lastIndexOf("\n", at + size) + 1, at + Math.floor(size / 2));
    const piece = text.slice(at, end);
    if (piece.trim().length >= 40) out.push(piece);
    at = end;
  }
  return out;
}

/**
 * Keeps held-out prompts out of a capture: neither their templates, nor the tasks that are held out with them, nor
 * their texts may be in a captured document, also not in one whose prompt the model wrote itself. A prompt that names
 * its template and no task asks a known task in words that were never captured.
 */
import type { Prompt } from "./prompts.ts";

export interface HeldOut {
  readonly size: number;
  /** Whether a document's prompt (its text, chat markup included) is or contains held-out material. */
  matches(promptText: string): boolean;
}

/** Words of a task that follow one another; shorter tasks are matched by all their words. */
const shingle = 6;

export function heldOutOf(prompts: readonly Prompt[]): HeldOut {
  const patterns = [...new Set(prompts.flatMap((p) => (p.template === undefined ? [] : [p.template])))].map(templatePattern);
  const phrases = new Set(prompts.flatMap((p) => (p.task !== undefined ? [words(p.task).join(" ")] : p.template === undefined ? shingles(textOf(p)) : [])));
  return {
    size: prompts.length,
    matches(promptText) {
      const normal = ` ${words(promptText).join(" ")} `;
      return patterns.some((pattern) => pattern.test(promptText)) || [...phrases].some((phrase) => normal.includes(` ${phrase} `));
    },
  };
}

export const textOf = (prompt: Prompt): string => prompt.prompt ?? (prompt.messages ?? []).map((m) => m.content).join("\n");

/** A template as a pattern: what is fixed in it, with anything on one line where a name or task stands. */
function templatePattern(template: string): RegExp {
  const fixed = template.split(/\{(?:name|task)\}/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`));
  return new RegExp(fixed.join("[^\\n]+?"), "i");
}

const words = (text: string): string[] => text.toLowerCase().match(/[a-z0-9_]+/g) ?? [];

function shingles(text: string): string[] {
  const all = words(text);
  if (all.length <= shingle) return [all.join(" ")];
  return Array.from({ length: all.length - shingle + 1 }, (_, i) => all.slice(i, i + shingle).join(" "));
}

/**
 * Prompt files: JSON Lines, one object a line, told apart by `kind`.
 *
 * - prompt (or no kind): a prompt as it is, `prompt` (text) or `messages` (rendered with the model's chat template).
 * - template and task: each template of a set is filled with each task of it: `{task}` and `{name}`.
 * - start: the beginning of a text; the model samples on from it before its own continuation begins.
 * - user-turn: the model writes the user's message itself, from the chat template's opening (Magpie, arXiv 2406.08464).
 */
import * as fs from "node:fs";
import * as z from "zod";
import { UserError, errorMessage } from "../util/errors.ts";

const message = z.strictObject({ role: z.string(), content: z.string() });
const half = z.enum(["chat", "code"]);
export type Half = z.infer<typeof half>;

const promptLine = z
  .strictObject({
    kind: z.literal("prompt").default("prompt"),
    id: z.string().optional(),
    half: half.default("chat"),
    prompt: z.string().optional(),
    messages: z.array(message).min(1).optional(),
    template: z.string().optional(),
    task: z.string().optional(),
  })
  .refine((line) => (line.prompt === undefined) !== (line.messages === undefined), { message: "needs either prompt or messages" });
const templateLine = z.strictObject({ kind: z.literal("template"), template: z.string(), tasks: z.string().default("all") });
const taskLine = z.strictObject({ kind: z.literal("task"), tasks: z.string().default("all"), name: z.string(), task: z.string() });
const startLine = z.strictObject({ kind: z.literal("start"), half: half.default("code"), text: z.string().min(1) });
const userTurnLine = z.strictObject({ kind: z.literal("user-turn") });

const schemas = { prompt: promptLine, template: templateLine, task: taskLine, start: startLine, "user-turn": userTurnLine } as const;

export type Prompt = z.infer<typeof promptLine>;
export type PromptLine = Prompt | z.infer<typeof templateLine> | z.infer<typeof taskLine> | z.infer<typeof startLine> | z.infer<typeof userTurnLine>;

/** @throws {UserError} with file, line number and what is wrong there. */
export function readPromptFile(file: string): PromptLine[] {
  let text: string;
  try {
    text = fs.readFileSync(file, "utf8");
  } catch (error) {
    throw new UserError(`--prompts ${file}: ${errorMessage(error)}`);
  }
  return text.split("\n").flatMap((line, i) => (line.trim() === "" ? [] : [parseLine(line, `${file}:${i + 1}`)]));
}

function parseLine(line: string, where: string): PromptLine {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch (error) {
    throw new UserError(`${where}: not JSON (${errorMessage(error)})`);
  }
  const kind = typeof json === "object" && json !== null && "kind" in json ? String(json.kind) : "prompt";
  const schema = schemas[kind as keyof typeof schemas] as z.ZodType<PromptLine> | undefined;
  if (schema === undefined) throw new UserError(`${where}: kind "${kind}" is not one of ${Object.keys(schemas).join(", ")}`);
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw new UserError(`${where}: ${[issue?.path.join("."), issue?.message].filter(Boolean).join(": ")}`);
}

export const isPrompt = (line: PromptLine): line is Prompt => line.kind === "prompt";

export function fillTemplate(template: string, task: { readonly name: string; readonly task: string }): string {
  return template.replaceAll("{name}", task.name).replaceAll("{task}", task.task);
}

/**
 * The tokenizer of a checkpoint as GGUF entries (conversion/base.py and gguf-py/gguf/vocab.py of llama.cpp): byte-level
 * BPE from tokenizer.json, special tokens and chat template from tokenizer_config.json.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { FormatError } from "../gguf/error.ts";
import { arrayEntry, boolEntry, stringEntry, u32Entry, type NewEntry } from "../gguf/kv.ts";
import { UserError } from "../util/errors.ts";
import { readJson, type JsonObject } from "./checkpoint.ts";

const tokenType = { normal: 1, control: 3, userDefined: 4, unused: 5 } as const;

/** Split patterns of the pre-tokenizers that llama.cpp has under these names (src/llama-vocab.cpp). */
const preTokenizers: Readonly<Record<string, string>> = {
  qwen2: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  qwen35: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
}

const isObject = (value: unknown): value is JsonObject => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * @param vocabSize ids without a token become unused `[PADn]` tokens.
 * @throws {UserError} when files are missing or the tokenizer is of another kind.
 */
export function tokenizerEntries(folder: string, modelConfig: JsonObject, vocabSize: number): NewEntry[] {
  const file = path.join(folder, "tokenizer.json");
  const json = readJson(file);
  if (json === undefined) throw new UserError(`${folder} has no tokenizer.json; fetch it from the model's repository`);
  const model = json["model"];
  if (!isObject(model) || !isObject(model["vocab"])) throw new FormatError(file, 0, "model.vocab", "must be an object of token ids");
  if (model["type"] !== undefined && model["type"] !== "BPE") throw new UserError(`${file}: the tokenizer is ${JSON.stringify(model["type"])}; byte-level BPE is converted`);
  const config = readJson(path.join(folder, "tokenizer_config.json"));
  const added = addedTokens(file, json, config);
  const { tokens, types } = tokenTable(file, model["vocab"], added, vocabSize);
  return [
    stringEntry("tokenizer.ggml.model", "gpt2"),
    stringEntry("tokenizer.ggml.pre", preTokenizerName(file, json)),
    arrayEntry("tokenizer.ggml.tokens", "string", tokens),
    arrayEntry("tokenizer.ggml.token_type", "i32", types),
    arrayEntry("tokenizer.ggml.merges", "string", merges(file, model["merges"])),
    ...specialTokenEntries(config, modelConfig, added),
    ...chatTemplateEntries(folder, config),
  ];
}

function addedTokens(file: string, json: JsonObject, config: JsonObject | undefined): AddedToken[] {
  const list = Array.isArray(json["added_tokens"]) ? json["added_tokens"] : [];
  const byId = new Map<number, AddedToken>();
  const decoder = config?.["added_tokens_decoder"];
  const all = [...(isObject(decoder) ? Object.entries(decoder).map(([id, token]) => (isObject(token) ? { ...token, id: Number(id) } : token)) : []), ...(list as unknown[])];
  for (const token of all) {
    if (!isObject(token) || typeof token["content"] !== "string" || !Number.isSafeInteger(token["id"])) throw new FormatError(file, 0, "added_tokens", "each needs an id and content");
    const id = token["id"] as number;
    byId.set(id, { id, content: token["content"], special: token["special"] === true });
  }
  return [...byId.values()];
}

function tokenTable(file: string, vocab: JsonObject, added: readonly AddedToken[], vocabSize: number): { tokens: string[]; types: number[] } {
  const tokens: string[] = Array.from({ length: vocabSize }, (_, id) => `[PAD${id}]`);
  const types: number[] = Array.from({ length: vocabSize }, () => tokenType.unused);
  const put = (id: unknown, text: string, type: number): void => {
    if (!Number.isSafeInteger(id) || (id as number) < 0 || (id as number) >= vocabSize) throw new FormatError(file, 0, "the vocabulary", `token ${JSON.stringify(text)} has id ${String(id)}, vocab_size is ${vocabSize}`);
    tokens[id as number] = text;
    types[id as number] = type;
  };
  for (const [text, id] of Object.entries(vocab)) put(id, text, tokenType.normal);
  for (const token of added) {
    const isControl = token.special || looksSpecial(token.content);
    put(token.id, isControl ? token.content : token.content.replaceAll("\u2581", " "), isControl ? tokenType.control : tokenType.userDefined);
  }
  return { tokens, types };
}

/** Tokens that models mark as ordinary although they steer. */
function looksSpecial(text: string): boolean {
  return ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].includes(text) || (text.startsWith("<|") && text.endsWith("|>")) || (text.startsWith("<｜") && text.endsWith("｜>")) || (text.startsWith("<unused") && text.endsWith(">"));
}

function preTokenizerName(file: string, json: JsonObject): string {
  const patterns: string[] = [];
  const collect = (value: unknown): void => {
    if (Array.isArray(value)) value.forEach(collect);
    else if (isObject(value)) {
      const pattern = value["pattern"];
      if (isObject(pattern) && typeof pattern["Regex"] === "string") patterns.push(pattern["Regex"]);
      collect(value["pretokenizers"]);
    }
  };
  collect(json["pre_tokenizer"]);
  const found = Object.entries(preTokenizers).find(([, pattern]) => patterns.length === 1 && patterns[0] === pattern);
  if (found === undefined) throw new UserError(`${file}: the pre-tokenizer's pattern is none of ${Object.keys(preTokenizers).join(", ")}: ${JSON.stringify(patterns)}`);
  return found[0];
}

function merges(file: string, list: unknown): string[] {
  if (!Array.isArray(list)) throw new FormatError(file, 0, "model.merges", "must be a list");
  return (list as unknown[]).map((merge) => {
    if (typeof merge === "string") return merge;
    if (Array.isArray(merge) && merge.length === 2 && merge.every((part) => typeof part === "string")) return merge.map((part) => part.replaceAll(" ", "\u0120")).join(" ");
    throw new FormatError(file, 0, "model.merges", `${JSON.stringify(merge)} is not a pair of tokens`);
  });
}

const specialKeys: Readonly<Record<string, string>> = { bos: "bos_token_id", eos: "eos_token_id", unk: "unknown_token_id", sep: "seperator_token_id", pad: "padding_token_id", cls: "cls_token_id", mask: "mask_token_id" };

function specialTokenEntries(config: JsonObject | undefined, modelConfig: JsonObject, added: readonly AddedToken[]): NewEntry[] {
  const ids = new Map<string, number>();
  const flags: NewEntry[] = [];
  for (const kind of Object.keys(specialKeys)) {
    const named = config?.[`${kind}_token`];
    const text = isObject(named) ? named["content"] : named;
    const token = added.find((t) => t.content === text);
    if (token !== undefined) ids.set(kind, token.id);
    const add = config?.[`add_${kind}_token`];
    if (typeof add === "boolean" && ["bos", "eos", "sep"].includes(kind)) flags.push(boolEntry(`tokenizer.ggml.add_${kind}_token`, add));
  }
  for (const kind of Object.keys(specialKeys)) {
    const id = modelConfig[`${kind}_token_id`];
    if (typeof id === "number" && id >= 0 && !ids.has(kind)) ids.set(kind, id);
  }
  return [...[...ids].map(([kind, id]) => u32Entry(`tokenizer.ggml.${specialKeys[kind]}`, id)), ...flags];
}

function chatTemplateEntries(folder: string, config: JsonObject | undefined): NewEntry[] {
  const jinja = path.join(folder, "chat_template.jinja");
  const template = config?.["chat_template"] ?? (fs.existsSync(jinja) ? fs.readFileSync(jinja, "utf8") : readJson(path.join(folder, "chat_template.json"))?.["chat_template"]);
  if (typeof template === "string") return [stringEntry("tokenizer.chat_template", template)];
  if (!Array.isArray(template)) return [];
  const named = (template as unknown[]).filter((t): t is { name: string; template: string } => isObject(t) && typeof t["name"] === "string" && typeof t["template"] === "string");
  const others = named.filter((t) => t.name !== "default");
  return [
    ...(others.length === 0 ? [] : [arrayEntry("tokenizer.chat_templates", "string", others.map((t) => t.name))]),
    ...named.map((t) => stringEntry(t.name === "default" ? "tokenizer.chat_template" : `tokenizer.chat_template.${t.name}`, t.template)),
  ];
}

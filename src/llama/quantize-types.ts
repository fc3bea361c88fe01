/** Names that `quantize` takes: whole-file types (llama_ftype) and tensor types, and the rules of `--tensor-type`. */
import * as fs from "node:fs";
import { ggmlTypeByName, ggmlTypes, fileTypeId, type GgmlType } from "../gguf/types.ts";
import { UserError, usageError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { nearest } from "../util/suggest.ts";

export interface FileType {
  readonly name: string;
  /** llama_ftype. */
  readonly id: number;
  /** Copies every tensor as it is. */
  readonly isCopy: boolean;
  /** What a tensor gets before the mixture and the rules: quantized types alone look at rules. */
  readonly isQuantized: boolean;
}

/** llama-quantize's list for v0.5.0. */
const fileTypeNames = [
  ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_XS", "IQ4_NL"],
  ["Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"],
  ["Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4_MOE"],
  ["F16", "BF16", "F32"],
].flat();
const aliases: Readonly<Record<string, string>> = { Q3_K: "Q3_K_M", Q4_K: "Q4_K_M", Q5_K: "Q5_K_M" };

export const fileTypeChoices: readonly string[] = [...fileTypeNames, ...Object.keys(aliases), "COPY"];

/** By name in any case. Undefined when there is none. */
export function findFileType(name: string): FileType | undefined {
  const upper = name.toUpperCase();
  if (upper === "COPY") return { name: "COPY", id: 0, isCopy: true, isQuantized: false };
  const full = aliases[upper] ?? upper;
  const id = fileTypeNames.includes(full) ? fileTypeId(full) : undefined;
  return id === undefined ? undefined : { name: full, id, isCopy: false, isQuantized: !/^(F16|BF16|F32)$/.test(full) };
}

/** @throws {UserError} exit code 2 with the nearest name or all of them. */
export function parseFileType(name: string): FileType {
  const type = findFileType(name);
  if (type !== undefined) return type;
  const hint = nearest(name.toUpperCase(), fileTypeChoices);
  throw usageError(`unknown type ${name}; ${hint === undefined ? `types are ${fileTypeChoices.join(", ")}` : `did you mean ${hint}?`}`);
}

/** ggml has no quantizer for these and would abort. */
const notQuantizable = new Set(["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"]);

/** A tensor type by ggml's name in any case. @throws {UserError} exit code 2. */
export function parseTensorType(name: string, where: string): GgmlType {
  const type = ggmlTypeByName(name);
  if (type !== undefined && !notQuantizable.has(type.name)) return type;
  if (type !== undefined) throw usageError(`${where}: ${type.name} is not a type that tensors are stored in`);
  const hint = nearest(name.toUpperCase(), ggmlTypes.map((t) => t.name).filter((n) => !notQuantizable.has(n)));
  throw usageError(`${where}: unknown tensor type ${name}${hint === undefined ? "" : `; did you mean ${hint}?`}`);
}

export interface TensorRule {
  /** As it was written; libllama searches it in tensor names, in lower case, and the first rule that matches wins. */
  readonly pattern: string;
  /** "copy": each tensor keeps the type it has. */
  readonly type: GgmlType | "copy";
}

/** `PATTERN=TYPE`. @throws {UserError} exit code 2. */
export function parseTensorRule(text: string, where: string): TensorRule {
  const at = text.lastIndexOf("=");
  if (at <= 0 || at === text.length - 1) throw usageError(`${where} ${text}: should be PATTERN=TYPE, as in ffn_down=q6_k`);
  const typeName = text.slice(at + 1);
  return { pattern: text.slice(0, at), type: /^copy$/i.test(typeName) ? "copy" : parseTensorType(typeName, `${where} ${text}`) };
}

/** Rules of a file, separated by spaces or lines as in llama-quantize; `#` begins a comment. */
export function readTensorRules(file: string): TensorRule[] {
  if (statFile(file, "--tensor-type-file").size > 16 << 20) throw new UserError(`--tensor-type-file ${file} is larger than 16 MiB; is it the right file?`);
  const lines = fs.readFileSync(file, "utf8").split(/\r?\n/);
  const rules = lines.flatMap((line, i) => line.replace(/(?:^|\s)#.*$/, "").split(/\s+/).filter((word) => word !== "").map((word) => parseTensorRule(word, `${file}:${i + 1}`)));
  if (rules.length === 0) throw new UserError(`--tensor-type-file ${file} holds no rule; a rule is PATTERN=TYPE`);
  return rules;
}

const posixClasses: Readonly<Record<string, string>> = { digit: "0-9", alpha: "a-zA-Z", alnum: "a-zA-Z0-9", lower: "a-z", upper: "A-Z", space: "\\s", xdigit: "0-9a-fA-F", punct: "!-/:-@[-`{-~", w: "\\w", d: "\\d", s: "\\s" };

/**
 * The pattern as std::regex (ECMAScript) reads it: lower case as llama-quantize passes it, searched anywhere. POSIX
 * classes exist there and not in JavaScript; what exists only in JavaScript is refused by libllama itself.
 * @throws {UserError} exit code 2 when it is no expression.
 */
export function compilePattern(pattern: string): RegExp {
  const source = pattern.toLowerCase().replace(/\[:(\w+):\]/g, (whole, name: string) => posixClasses[name] ?? whole);
  try {
    return new RegExp(source);
  } catch (error) {
    throw usageError(`--tensor-type ${pattern}: not a regular expression (${error instanceof Error ? error.message : ""}); escape its special characters`);
  }
}

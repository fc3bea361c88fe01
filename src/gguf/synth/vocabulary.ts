/**
 * A tokenizer for files without a model: the 256 bytes, merges that make common words of English and code, fillers,
 * and the special tokens of a ChatML model. Text goes in and comes out unchanged; fillers only come out.
 */
import { UserError } from "../../util/errors.ts";
import { arrayEntry, boolEntry, stringEntry, u32Entry, type NewEntry } from "../kv.ts";

const words = (
  "the of and to in is that for it as with on be by this are from at or an not have has was were will would can could should if then else " +
  "when which what who how why where there their them they you your we our his her its one two three first last new old good more most some any all no yes " +
  "function return def class import from self print for while if elif else try except with as in not and or is None True False lambda yield assert raise " +
  "const let var new this null true false undefined export default async await string number boolean void static public private int float double char struct " +
  "write read open close file name value values key keys list lists dict set tuple array index item items result results data text line lines word words count " +
  "number numbers sum add sub mul div max min len range append sort sorted search find replace split join test example code python program write simple please explain"
).split(" ");

const chatTemplate = [
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}",
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
].join("");

/** Letters that stand for the 256 bytes in byte-level BPE (GPT-2): printable ones for themselves. */
function byteLetters(): string[] {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCodePoint(isPrintable ? byte : next++);
  });
}

const specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/** @throws {UserError} when `vocabSize` has no room for bytes and special tokens. */
export function vocabularyEntries(vocabSize: number): NewEntry[] {
  const least = 256 + specials.length;
  if (vocabSize < least) throw new UserError(`a vocabulary of ${vocabSize} is too small; ${least} tokens are the least (256 bytes and ${specials.length} special tokens)`);
  const tokens = byteLetters();
  const merges: string[] = [];
  const known = new Set(tokens);
  const room = vocabSize - specials.length;
  for (const word of words.flatMap((w) => [`\u0120${w}`, w])) {
    for (let end = 2; end <= word.length && tokens.length < room; end++) {
      const merged = word.slice(0, end);
      if (known.has(merged)) continue;
      known.add(merged);
      tokens.push(merged);
      merges.push(`${word.slice(0, end - 1)} ${word.slice(end - 1, end)}`);
    }
  }
  while (tokens.length < room) tokens.push(`\u0120w${tokens.length}`);
  const [endOfText, , endOfTurn] = specials.map((_, i) => room + i) as [number, number, number];
  tokens.push(...specials);
  return [
    stringEntry("tokenizer.ggml.model", "gpt2"),
    stringEntry("tokenizer.ggml.pre", "qwen35"),
    arrayEntry("tokenizer.ggml.tokens", "string", tokens),
    arrayEntry("tokenizer.ggml.token_type", "i32", tokens.map((_, id) => (id < room ? 1 : 3))),
    arrayEntry("tokenizer.ggml.merges", "string", merges),
    u32Entry("tokenizer.ggml.eos_token_id", endOfTurn),
    u32Entry("tokenizer.ggml.padding_token_id", endOfText),
    boolEntry("tokenizer.ggml.add_bos_token", false),
    stringEntry("tokenizer.chat_template", chatTemplate),
  ];
}

/** The verbs, in the order a model goes through them. Each is loaded only when it runs. */
import type { Command } from "../config/command.ts";

export interface Verb {
  readonly summary: string;
  load(): Promise<Command>;
}

const verb = (summary: string, load: () => Promise<{ command: unknown }>): Verb => ({
  summary,
  load: async () => (await load()).command as Command,
});

export const verbs: Readonly<Record<string, Verb>> = {
  doctor: verb("what this machine can run, and what to install for more", () => import("./doctor.ts")),
  inspect: verb("what is in a GGUF file or checkpoint: sizes, types, and its MTP head", () => import("./inspect.ts")),
  pull: verb("files of a model repository, into the shared Hugging Face cache", () => import("./pull.ts")),
  convert: verb("a Hugging Face checkpoint (qwen3_5, qwen3_5_moe) as a GGUF file", () => import("./convert.ts")),
  bootstrap: verb("an MTP head from one trunk layer, where training begins", () => import("./bootstrap.ts")),
  graft: verb("put the MTP head of a donor into a GGUF file", () => import("./graft.ts")),
  strip: verb("a GGUF file without its MTP head", () => import("./strip.ts")),
  extract: verb("the MTP head of a GGUF file as a draft file of its own", () => import("./extract.ts")),
  repair: verb("make the keys of a GGUF file tell the truth about its MTP head", () => import("./repair.ts")),
  quantize: verb("a GGUF file with smaller tensors, through libllama", () => import("./quantize.ts")),
  synth: verb("a loadable GGUF file with a model's shape and random weights", () => import("./synth.ts")),
  capture: verb("let the model write, and keep its tokens and hidden rows for training a head", () => import("./capture.ts")),
  train: verb("train a draft head on captured hidden rows, or judge heads by what the runtime accepts", () => import("./train.ts")),
  "draft-vocab": verb("the tokens that a model writes most, for drafts by a shorter LM head", () => import("./draft-vocab.ts")),
  serve: verb("an OpenAI-compatible server, with or without drafts", () => import("./serve.ts")),
  chat: verb("talk to a server in the terminal", () => import("./chat.ts")),
  trace: verb("what steps the engine makes: decode calls, forwards, row shapes, time by phase", () => import("./trace.ts")),
  bench: verb("load-test any OpenAI-compatible server: throughput, latencies, draft acceptance", () => import("./bench.ts")),
  "bench sweep": verb("measure servers against each other over concurrencies and rounds, from a plan file", () => import("./bench-sweep.ts")),
  "probe correctness": verb("the gate: the server lists the model and both endpoints answer coherently", () => import("./probe-correctness.ts")),
  "probe determinism capture": verb("greedy outputs of a server, kept to be compared", () => import("./probe-determinism-capture.ts")),
  "probe determinism compare": verb("where captures part from a reference, and how near a tie it was", () => import("./probe-determinism-compare.ts")),
  "probe determinism certify": verb("run modes of a plan, compare their greedy outputs, write the certificate", () => import("./probe-determinism-certify.ts")),
  report: verb("write a run folder's report again from its raw files", () => import("./report.ts")),
  lab: verb("run a recipe: make the files, serve and measure them, write the report", () => import("./lab.ts")),
};

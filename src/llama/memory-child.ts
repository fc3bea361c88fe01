/** Child of `estimateMemory`: plans and makes every context of a backend on models that are not read. */
import { planContexts, type BackendOptions } from "./backend.ts";
import { serveChild } from "./child.ts";
import { createContext, type ContextOptions } from "./create-context.ts";
import { checkHead, checkTarget, readModelFacts } from "./head-check.ts";
import { captureLog, loadLlama } from "./library.ts";
import { parseContextMemory, totalBytes, weightBytes, type MemoryEstimate } from "./memory.ts";
import { loadModel } from "./model.ts";

function estimate(options: BackendOptions): MemoryEstimate {
  const { headPaths = [], useHead = false, device = "auto", gpuLayers = -1 } = options;
  const isInFile = useHead && headPaths.length === 0;
  const target = readModelFacts(options.modelPath);
  checkTarget(target, isInFile);
  const heads = headPaths.map((path) => readModelFacts(path));
  for (const head of heads) checkHead(head, target);
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const { lines } = captureLog(llama, () => {
    const model = loadModel(llama, target.path, { facts: target, loadMtp: isInFile, noAlloc: true, device, gpuLayers });
    const headModels = isInFile ? [model] : heads.map((facts) => loadModel(llama, facts.path, { facts, loadMtp: true, noAlloc: true, device, gpuLayers }));
    const plan = planContexts(options, model, headModels.length);
    createContext(model, plan.target);
    if (plan.plainTarget !== undefined) createContext(model, plan.plainTarget);
    headModels.forEach((head, i) => createContext(head, plan.heads[i] as ContextOptions));
  });
  const contexts = parseContextMemory(lines);
  const weights = heads.reduce((sum, head) => sum + weightBytes(head.path, head.nTrunkLayers, true), weightBytes(target.path, target.nTrunkLayers, isInFile));
  return { weightBytes: weights, contexts, totalBytes: totalBytes(weights, contexts) };
}

serveChild(estimate);

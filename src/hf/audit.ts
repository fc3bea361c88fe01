/** A checkpoint folder in figures, and whether its config promises an MTP head that the tensors hold. */
import type { ModelShape } from "../gguf/model-shape.ts";
import { nextnLayerTensors } from "../gguf/model-shape.ts";
import { readCheckpoint, type Checkpoint } from "./checkpoint.ts";
import { readModelConfig } from "./config.ts";
import { planTensors } from "./tensor-plan.ts";
import { plainName } from "./tensor-names.ts";

export interface CheckpointAudit {
  readonly folder: string;
  readonly architecture: string;
  readonly nTrunkLayers: number;
  readonly nTensors: number;
  readonly nParameters: number;
  readonly tensorBytes: number;
  readonly dtypes: readonly { readonly dtype: string; readonly nTensors: number; readonly sizeBytes: number }[];
  readonly mtp: {
    readonly nAdvertised: number;
    readonly nTensors: number;
    /** GGUF names of what the head lacks. */
    readonly missing: readonly string[];
    readonly advice: string;
  };
}

export function auditCheckpoint(folder: string): CheckpointAudit {
  const checkpoint = readCheckpoint(folder);
  const config = readModelConfig(checkpoint);
  const tensors = [...checkpoint.tensors.values()];
  const dtypes = new Map<string, { dtype: string; nTensors: number; sizeBytes: number }>();
  for (const { dtype, sizeBytes } of tensors) {
    const total = dtypes.get(dtype) ?? { dtype, nTensors: 0, sizeBytes: 0 };
    dtypes.set(dtype, { dtype, nTensors: total.nTensors + 1, sizeBytes: total.sizeBytes + sizeBytes });
  }
  return {
    folder,
    architecture: config.shape.architecture,
    nTrunkLayers: config.shape.nLayers,
    nTensors: tensors.length,
    nParameters: tensors.reduce((n, t) => n + t.shape.reduce((m, d) => m * d, 1), 0),
    tensorBytes: tensors.reduce((n, t) => n + t.sizeBytes, 0),
    dtypes: [...dtypes.values()],
    mtp: auditHead(checkpoint, config.shape, config.nMtpLayers),
  };
}

function auditHead(checkpoint: Checkpoint, shape: ModelShape, nAdvertised: number): CheckpointAudit["mtp"] {
  const head = [...checkpoint.tensors.values()].filter((t) => plainName(t.name, shape.nLayers).isMtp);
  const { folder } = checkpoint;
  if (head.length === 0) {
    const advice =
      nAdvertised === 0
        ? "No MTP head, and none is promised."
        : `config.json promises ${nAdvertised} MTP layer${nAdvertised === 1 ? "" : "s"} (mtp_num_hidden_layers), the checkpoint holds no mtp.* tensor. Convert with --no-mtp, or build a head: foretoken bootstrap ${folder} -o HEAD.`;
    return { nAdvertised, nTensors: 0, missing: [], advice };
  }
  const planned = new Set(planTensors(head, shape, "mtp", "BF16").tensors.map((t) => t.name));
  const missing = nextnLayerTensors({ ...shape, nNextnLayers: 1 }, shape.nLayers)
    .filter((t) => t.isOptional !== true && !planned.has(t.name))
    .map((t) => t.name);
  const isPromised = nAdvertised > 0 ? "" : " config.json does not promise it (mtp_num_hidden_layers).";
  const advice = missing.length === 0 ? `MTP head present and complete (${head.length} mtp.* tensors).${isPromised}` : `The MTP head lacks ${missing.length} tensors, by their GGUF names: ${missing.slice(0, 4).join(", ")}${missing.length > 4 ? ", ..." : ""}.`;
  return { nAdvertised, nTensors: head.length, missing, advice };
}

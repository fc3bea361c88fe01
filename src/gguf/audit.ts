/** A model file in figures: sizes, types, bits per weight, MTP. From the header alone. */
import { architecture, countKey, stringKey } from "./keys.ts";
import { loadProblems } from "./load-problems.ts";
import { mtpStatus, type MtpStatus } from "./mtp-status.ts";
import type { GgufModel } from "./split.ts";
import { fileTypeName, typeName } from "./types.ts";

export interface TypeTotal {
  readonly type: string;
  readonly nTensors: number;
  readonly nElements: number;
  readonly sizeBytes: number;
}

export interface Audit {
  readonly file: string;
  readonly nShards: number;
  readonly fileBytes: number;
  readonly version: number;
  readonly littleEndian: boolean;
  readonly alignment: number;
  /** Undefined for a file that is no model, such as an importance matrix. */
  readonly architecture: string | undefined;
  readonly name: string | undefined;
  readonly fileType: string | undefined;
  readonly nKeys: number;
  readonly nTensors: number;
  readonly nParameters: number;
  readonly tensorBytes: number;
  /** 8 x tensor bytes / parameters, as llama-quantize reports it. */
  readonly bitsPerWeight: number;
  readonly types: readonly TypeTotal[];
  readonly mtp: MtpStatus;
  readonly remarks: readonly string[];
  /** Why llama.cpp would refuse the file although its header is sound. */
  readonly problems: readonly string[];
}

export function auditModel(model: GgufModel): Audit {
  const nParameters = model.tensors.reduce((n, t) => n + t.nElements, 0);
  const tensorBytes = model.tensors.reduce((n, t) => n + t.sizeBytes, 0);
  const isModel = model.entries.has("general.architecture");
  const fileType = countKey(model, "general.file_type");
  return {
    file: model.file,
    nShards: model.shards.length,
    fileBytes: model.fileBytes,
    version: model.version,
    littleEndian: model.littleEndian,
    alignment: model.alignment,
    architecture: isModel ? architecture(model) : undefined,
    name: stringKey(model, "general.name"),
    fileType: fileType === undefined ? undefined : fileTypeName(fileType),
    nKeys: model.entries.size,
    nTensors: model.tensors.length,
    nParameters,
    tensorBytes,
    bitsPerWeight: nParameters === 0 ? 0 : (8 * tensorBytes) / nParameters,
    types: typeTotals(model),
    mtp: isModel ? mtpStatus(model) : notAModel,
    remarks: model.remarks,
    problems: isModel ? loadProblems(model) : [],
  };
}

const notAModel: MtpStatus = { verdict: "none", nAdvertised: 0, blocks: [], nTrunkLayers: 0, blockCount: undefined, isHeadOnly: false, missing: [], advice: "general.architecture is missing: the file is no model." };

function typeTotals(model: GgufModel): TypeTotal[] {
  const totals = new Map<string, TypeTotal>();
  for (const t of model.tensors) {
    const type = typeName(t.typeId);
    const before = totals.get(type);
    totals.set(type, { type, nTensors: (before?.nTensors ?? 0) + 1, nElements: (before?.nElements ?? 0) + t.nElements, sizeBytes: (before?.sizeBytes ?? 0) + t.sizeBytes });
  }
  return [...totals.values()].toSorted((a, b) => b.sizeBytes - a.sizeBytes);
}

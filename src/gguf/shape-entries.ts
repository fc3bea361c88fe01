import { arrayEntry, f32Entry, u32Entry, type NewEntry } from "./kv.ts";
import { innerSize, type ModelShape } from "./model-shape.ts";

/**
 * The model's own keys in the order in which llama.cpp's converter writes them. `nextn_predict_layers` is written only
 * when there are NextN layers.
 * @param fileType the id of `general.file_type`.
 */
export function shapeEntries(s: ModelShape, fileType: number): NewEntry[] {
  const key = (name: string): string => `${s.architecture}.${name}`;
  const nBlocks = s.nLayers + s.nNextnLayers;
  const { experts } = s;
  return [
    u32Entry(key("block_count"), nBlocks),
    u32Entry(key("context_length"), s.contextLength),
    u32Entry(key("embedding_length"), s.embeddingLength),
    ...(s.feedForward === undefined ? [] : [u32Entry(key("feed_forward_length"), s.feedForward)]),
    u32Entry(key("attention.head_count"), s.nHeads),
    u32Entry(key("attention.head_count_kv"), s.nKvHeads),
    arrayEntry(key("rope.dimension_sections"), "i32", s.ropeSections),
    f32Entry(key("rope.freq_base"), s.ropeFreqBase),
    f32Entry(key("attention.layer_norm_rms_epsilon"), s.rmsEpsilon),
    ...(experts === undefined ? [] : [u32Entry(key("expert_count"), experts.count), u32Entry(key("expert_used_count"), experts.usedCount)]),
    u32Entry(key("attention.key_length"), s.headDim),
    u32Entry(key("attention.value_length"), s.headDim),
    u32Entry("general.file_type", fileType),
    ...(experts === undefined ? [] : [u32Entry(key("expert_feed_forward_length"), experts.feedForward), u32Entry(key("expert_shared_feed_forward_length"), experts.sharedFeedForward)]),
    ...(s.nNextnLayers === 0 ? [] : [u32Entry(key("nextn_predict_layers"), s.nNextnLayers)]),
    u32Entry(key("ssm.conv_kernel"), s.ssm.convKernel),
    u32Entry(key("ssm.state_size"), s.ssm.stateSize),
    u32Entry(key("ssm.group_count"), s.ssm.groupCount),
    u32Entry(key("ssm.time_step_rank"), s.ssm.timeStepRank),
    u32Entry(key("ssm.inner_size"), innerSize(s)),
    recurrentLayersEntry(s),
    u32Entry(key("full_attention_interval"), s.fullAttentionInterval),
    u32Entry(key("rope.dimension_count"), s.ropeDimension),
  ];
}

/** One flag per block; NextN layers are attention layers. */
export function recurrentLayersEntry(s: ModelShape): NewEntry {
  return arrayEntry(`${s.architecture}.attention.recurrent_layers`, "bool", [...s.isRecurrent, ...Array.from({ length: s.nNextnLayers }, () => false)]);
}

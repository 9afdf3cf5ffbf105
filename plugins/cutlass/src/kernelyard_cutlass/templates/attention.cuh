// softmax(scale * queries @ keys.T + bias, masked) @ values for each head: CUTLASS's fused multi-head attention.
// Heads of queries may share a head of keys and values. With starts of sequences, rows are packed one after the other.
#include "fused_attention.h"

using Kernel = AttentionKernel<
    KY_INPUT, cutlass::arch::Sm80, KY_IS_ALIGNED, KY_QUERIES, KY_KEYS, KY_MOST_SIZE, false, KY_HAS_BIAS>;

extern "C" __global__ void __launch_bounds__(Kernel::kNumThreads, Kernel::kMinBlocksPerSm) KY_ENTRY(
    long long batch, long long rows, long long columns, long long heads, long long shared_heads, long long size,
    long long value_size, KY_INPUT* queries, KY_INPUT* keys, KY_INPUT* values, KY_INPUT* bias, int* starts_q,
    int* starts_k, KY_INPUT* result, float* accumulators, long long bias_batch, long long bias_head,
    long long bias_row, long long row_q, long long row_k, long long row_v, long long mask, double scale) {
  typename Kernel::Params p;
  p.query_ptr = queries, p.key_ptr = keys, p.value_ptr = values, p.output_ptr = result;
  p.attn_bias_ptr = bias;
  p.output_accum_ptr = Kernel::kNeedsOutputAccumulatorBuffer ? accumulators : nullptr;
  p.seqstart_q_ptr = starts_q, p.seqstart_k_ptr = starts_k;
  p.scale = float(scale);
  p.head_dim = int(size), p.head_dim_value = int(value_size);
  p.num_queries = int(rows), p.num_keys = int(columns), p.num_batches = int(batch), p.num_heads = int(heads);
  p.custom_mask_type = (unsigned char)mask;
  p.q_strideM = int(row_q), p.k_strideM = int(row_k), p.v_strideM = int(row_v), p.bias_strideM = int(bias_row);
  p.o_strideM = int(heads * value_size);
  p.q_strideH = int(size), p.k_strideH = int(size), p.v_strideH = int(value_size), p.bias_strideH = bias_head;
  p.q_strideB = rows * row_q, p.k_strideB = columns * row_k, p.v_strideB = columns * row_v, p.bias_strideB = bias_batch;
  // Moving to the block adds one head of keys for each head of queries; it is to be one for each group of them.
  long long behind = (long long)(blockIdx.y / (heads / shared_heads)) - (long long)blockIdx.y;
  p.key_ptr += behind * size, p.value_ptr += behind * value_size;
  if (p.advance_to_block()) Kernel::attention_kernel(p);
}

extern "C" __device__ const int ky_shared_nbytes = sizeof(typename Kernel::SharedStorage);
extern "C" __device__ const int ky_threads = Kernel::kNumThreads;

// Each row normalised: (x - mean) / sqrt(variance + epsilon) * gamma + beta, or, with KY_IS_RMS, x / sqrt(mean of
// squares + epsilon) * gamma. A block of threads for each row; sums are float, or wider.
#include "elements.h"

using Pack = cutlass::AlignedArray<KY_INPUT, KY_ALIGNMENT>;
using Numbers = cutlass::Array<float, KY_ALIGNMENT>;

__device__ inline Numbers read(KY_INPUT const* at) {
  Pack stored = *reinterpret_cast<Pack const*>(at);
  return cutlass::NumericArrayConverter<float, KY_INPUT, KY_ALIGNMENT>()(stored);
}

// The sum over all threads of the block, which all get.
__device__ inline float total(float value, float* of_warps) {
  for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < KY_THREADS / 32; ++warp) sum += of_warps[warp];
  __syncthreads();
  return sum;
}

extern "C" __global__ void __launch_bounds__(KY_THREADS) KY_ENTRY(
    long long columns, KY_INPUT* x, KY_INPUT* gamma, KY_INPUT* beta, KY_INPUT* y, double epsilon) {
  __shared__ float of_warps[KY_THREADS / 32];
  KY_INPUT const* row = x + blockIdx.x * columns;
  long long const first = threadIdx.x * KY_ALIGNMENT, step = KY_THREADS * KY_ALIGNMENT;
  float mean = 0, squares = 0;
#ifndef KY_IS_RMS
  for (long long i = first; i < columns; i += step) {
    Numbers numbers = read(row + i);
    for (int j = 0; j < KY_ALIGNMENT; ++j) mean += numbers[j];
  }
  mean = total(mean, of_warps) / float(columns);
#endif
  for (long long i = first; i < columns; i += step) {
    Numbers numbers = read(row + i);
    for (int j = 0; j < KY_ALIGNMENT; ++j) squares += (numbers[j] - mean) * (numbers[j] - mean);
  }
  float const factor = 1.0f / sqrtf(total(squares, of_warps) / float(columns) + float(epsilon));
  for (long long i = first; i < columns; i += step) {
    Numbers numbers = read(row + i), scales = read(gamma + i);
    for (int j = 0; j < KY_ALIGNMENT; ++j) numbers[j] = (numbers[j] - mean) * factor * scales[j];
#ifndef KY_IS_RMS
    Numbers shifts = read(beta + i);
    for (int j = 0; j < KY_ALIGNMENT; ++j) numbers[j] += shifts[j];
#endif
    Pack stored;
    static_cast<cutlass::Array<KY_INPUT, KY_ALIGNMENT>&>(stored) =
        cutlass::NumericArrayConverter<KY_INPUT, float, KY_ALIGNMENT>()(numbers);
    *reinterpret_cast<Pack*>(y + blockIdx.x * columns + i) = stored;
  }
}

extern "C" __device__ const int ky_threads = KY_THREADS;

// Weights stored in KY_BITS bits, column by column (N, K), with a scale for every `group` of a column's elements
// (K / group, N), as floats (N, K): what a GEMM reads. A thread for each run of elements of one group.
#include "elements.h"

constexpr int kRun = 16;
using Stored = cutlass::AlignedArray<KY_WEIGHT, kRun>;
using Dequantized = cutlass::AlignedArray<KY_INPUT, kRun>;

extern "C" __global__ void __launch_bounds__(KY_THREADS) KY_ENTRY(
    long long n, long long k, long long group, char* weights, KY_INPUT* scales, KY_INPUT* dequantized) {
  long long const at = (blockIdx.x * (long long)KY_THREADS + threadIdx.x) * kRun;
  if (at >= n * k) return;
  long long const column = at / k, i = at % k;
  Stored stored = *reinterpret_cast<Stored const*>(weights + at * KY_BITS / 8);
  cutlass::Array<KY_INPUT, kRun> whole = cutlass::NumericArrayConverter<KY_INPUT, KY_WEIGHT, kRun>()(stored);
  float const scale = float(scales[i / group * n + column]);
  Dequantized result;
  for (int j = 0; j < kRun; ++j) result[j] = KY_INPUT(float(whole[j]) * scale);
  *reinterpret_cast<Dequantized*>(dequantized + at) = result;
}

extern "C" __device__ const int ky_threads = KY_THREADS;

// D = activation(A @ dequantized weights + bias), combined with a residual, for few rows: what takes time is reading the
// weights, once. They are stored in KY_BITS bits, column by column (N, K), with a scale for every `group` of a column's
// elements (K / group, N). A warp for each column; KY_ROWS rows at a time.
#include "elements.h"

constexpr int kRun = 16;  // elements that a lane dequantizes at a time; they are of one group
using Stored = cutlass::AlignedArray<KY_WEIGHT, kRun>;
using Half = cutlass::AlignedArray<KY_INPUT, 16 / sizeof(KY_INPUT)>;

__device__ inline void read(KY_INPUT const* at, float* numbers) {
  for (int part = 0; part < kRun; part += Half::kElements) {
    Half stored = *reinterpret_cast<Half const*>(at + part);
    cutlass::Array<float, Half::kElements> wide =
        cutlass::NumericArrayConverter<float, KY_INPUT, Half::kElements>()(stored);
    for (int i = 0; i < Half::kElements; ++i) numbers[part + i] = wide[i];
  }
}

extern "C" __global__ void __launch_bounds__(KY_THREADS) KY_ENTRY(
    long long m, long long n, long long k, long long group, KY_INPUT* a, char* weights, KY_INPUT* scales,
    KY_OUTPUT* bias, KY_OUTPUT* residual, KY_OUTPUT* d, long long ld_residual) {
  long long const column = blockIdx.x * (KY_THREADS / 32) + threadIdx.x / 32;
  long long const row = blockIdx.y * KY_ROWS;
  int const lane = threadIdx.x % 32;
  if (column >= n) return;
  float sums[KY_ROWS] = {};
  char const* of_column = weights + column * k * KY_BITS / 8;
  for (long long i = lane * kRun; i < k; i += 32 * kRun) {
    Stored stored = *reinterpret_cast<Stored const*>(of_column + i * KY_BITS / 8);
    cutlass::Array<KY_INPUT, kRun> decoded = cutlass::NumericArrayConverter<KY_INPUT, KY_WEIGHT, kRun>()(stored);
    float const scale = float(scales[i / group * n + column]);
    for (int r = 0; r < KY_ROWS; ++r) {
      if (row + r >= m) break;
      float numbers[kRun], sum = 0;
      read(a + (row + r) * k + i, numbers);
      for (int j = 0; j < kRun; ++j) sum += numbers[j] * float(decoded[j]);
      sums[r] += sum * scale;
    }
  }
  for (int r = 0; r < KY_ROWS; ++r) {
    for (int distance = 16; distance; distance /= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], distance);
    if (lane || row + r >= m) continue;
    float value = KY_ACTIVATION<float>()(sums[r] + (bias ? float(bias[column]) : 0.0f));
#ifdef KY_COMBINE
    value = KY_FINAL<float>()(KY_COMBINE<float>()(value, float(residual[(row + r) * ld_residual + column])));
#endif
    d[(row + r) * n + column] = KY_OUTPUT(value);
  }
}

extern "C" __device__ const int ky_threads = KY_THREADS;

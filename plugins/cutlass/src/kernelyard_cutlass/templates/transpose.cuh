// Matrices (rows, columns), one after another, transposed: weights and images with their channels first become such with
// channels last. A block of 256 threads for a square of 32 by 32.
#include "elements.h"

extern "C" __global__ void __launch_bounds__(256) KY_ENTRY(long long rows, long long columns, KY_INPUT* x, KY_INPUT* y) {
  __shared__ KY_INPUT square[32][33];
  int const across = threadIdx.x % 32, down = threadIdx.x / 32;
  long long const start = blockIdx.z * rows * columns, row = blockIdx.y * 32LL, column = blockIdx.x * 32LL;
  for (int i = down; i < 32; i += 8)
    if (row + i < rows && column + across < columns) square[i][across] = x[start + (row + i) * columns + column + across];
  __syncthreads();
  for (int i = down; i < 32; i += 8)
    if (column + i < columns && row + across < rows) y[start + (column + i) * rows + row + across] = square[across][i];
}

extern "C" __device__ const int ky_threads = 256;

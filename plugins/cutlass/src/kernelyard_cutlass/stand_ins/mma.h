// Stands in for the header of warp-level matrices, whose inner part only the wheel of the compiler nvcc has: CUTLASS
// names these types, and no kernel here uses them.
#pragma once
namespace nvcuda {
namespace wmma {
struct accumulator;
struct col_major;
struct matrix_a;
struct matrix_b;
struct row_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}
namespace experimental {
enum bmmaBitOp { bmmaBitOpXOR = 1, bmmaBitOpAND = 2 };
enum bmmaAccumulateOp { bmmaAccumulateOpPOPC = 1 };
namespace precision {
struct b1;
struct s4;
struct u4;
}  // namespace precision
}  // namespace experimental
template <class Use, int M, int N, int K, class Element, class Layout = void>
struct fragment;
template <class... Arguments>
__device__ inline void bmma_sync(Arguments&&...) {}
}  // namespace wmma
}  // namespace nvcuda

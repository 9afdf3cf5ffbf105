// D = final(combine(activation(alpha * A @ B + beta * source + vector), residual)), batch after batch.
// Without KY_COMBINE the source is what the accumulators are added to (a bias where its leading dimension is 0); with it
// the source is the residual, and the vector, where there is one, the bias.
#include <cuda/std/cstdint>
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/epilogue/thread/linear_combination_residual_block.h"
#include "cutlass/functional.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"
#include "cutlass/gemm/kernel/default_gemm_with_broadcast.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

using Tile = cutlass::gemm::GemmShape<KY_TILE>;
using Warp = cutlass::gemm::GemmShape<KY_WARP>;
using Instruction = cutlass::gemm::GemmShape<KY_INSTRUCTION>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
using RowMajor = cutlass::layout::RowMajor;

#ifdef KY_COMBINE
using OutputOp = cutlass::epilogue::thread::LinearCombinationResidualBlock<
    KY_OUTPUT, KY_ACCUMULATOR, KY_COMPUTE, KY_OUTPUT, KY_ALIGNMENT_C, KY_ACTIVATION, KY_COMBINE, KY_FINAL>;
#define KY_GEMM DefaultGemmWithBroadcast
#elif defined(KY_ACTIVATION)
using OutputOp = cutlass::epilogue::thread::LinearCombinationGeneric<
    KY_ACTIVATION, KY_OUTPUT, KY_ALIGNMENT_C, KY_ACCUMULATOR, KY_COMPUTE>;
#define KY_GEMM DefaultGemmUniversal
#else
using OutputOp =
    cutlass::epilogue::thread::LinearCombination<KY_OUTPUT, KY_ALIGNMENT_C, KY_ACCUMULATOR, KY_COMPUTE>;
#define KY_GEMM DefaultGemmUniversal
#endif

using Kernel = typename cutlass::gemm::kernel::KY_GEMM<
    KY_INPUT, RowMajor, cutlass::ComplexTransform::kNone, KY_ALIGNMENT_A,
    KY_INPUT, KY_LAYOUT_B, cutlass::ComplexTransform::kNone, KY_ALIGNMENT_B,
    KY_OUTPUT, RowMajor, KY_ACCUMULATOR, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    Tile, Warp, Instruction, OutputOp, Swizzle, KY_STAGES, KY_OPERATOR>::GemmKernel;

extern "C" __global__ __launch_bounds__(Kernel::kThreadCount) void KY_ENTRY(
    long long m, long long n, long long k, long long batch,
    KY_INPUT* a, KY_INPUT* b, KY_OUTPUT* source, KY_OUTPUT* vector, KY_OUTPUT* d,
    long long lda, long long ldb, long long ld_source, long long ldd,
    long long stride_a, long long stride_b, long long stride_source, long long stride_d,
    double alpha, double beta) {
  extern __shared__ __align__(16) char shared[];
  typename OutputOp::Params scales{KY_COMPUTE(alpha), KY_COMPUTE(beta)};
  cutlass::gemm::GemmCoord problem{int(m), int(n), int(k)};
#ifdef KY_COMBINE
  typename Kernel::Arguments arguments(
      cutlass::gemm::GemmUniversalMode::kBatched, problem, int(batch), scales, a, b, source, d, vector, nullptr,
      stride_a, stride_b, stride_source, stride_d, 0, 0, int(lda), int(ldb), int(ld_source), int(ldd), 0, 0);
#else
  typename Kernel::Arguments arguments(
      cutlass::gemm::GemmUniversalMode::kBatched, problem, int(batch), scales, a, b, source, d,
      stride_a, stride_b, stride_source, stride_d, int(lda), int(ldb), int(ld_source), int(ldd));
#endif
  typename Kernel::Params params(arguments, 1, 1);
  Kernel{}(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}

extern "C" __device__ const int ky_shared_nbytes = sizeof(typename Kernel::SharedStorage);
extern "C" __device__ const int ky_threads = Kernel::kThreadCount;

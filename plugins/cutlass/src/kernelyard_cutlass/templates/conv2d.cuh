// Convolution of images with channels last (N, H, W, C) by weights (K, R, S, C), as a GEMM of N*P*Q rows and K columns;
// the epilogue is that of gemm.cuh. Padding below and to the right is what the sizes P and Q of the result imply.
#include <cuda/std/cstdint>
#include "cutlass/cutlass.h"
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "cutlass/conv/kernel/default_conv2d_fprop_with_broadcast.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/epilogue/thread/linear_combination_residual_block.h"
#include "cutlass/functional.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

using Tile = cutlass::gemm::GemmShape<KY_TILE>;
using Warp = cutlass::gemm::GemmShape<KY_WARP>;
using Instruction = cutlass::gemm::GemmShape<KY_INSTRUCTION>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
using Layout = cutlass::layout::TensorNHWC;

#ifdef KY_COMBINE
using OutputOp = cutlass::epilogue::thread::LinearCombinationResidualBlock<
    KY_OUTPUT, KY_ACCUMULATOR, KY_COMPUTE, KY_OUTPUT, KY_ALIGNMENT_C, KY_ACTIVATION, KY_COMBINE, KY_FINAL>;
#define KY_CONV DefaultConv2dFpropWithBroadcast
#elif defined(KY_ACTIVATION)
using OutputOp = cutlass::epilogue::thread::LinearCombinationGeneric<
    KY_ACTIVATION, KY_OUTPUT, KY_ALIGNMENT_C, KY_ACCUMULATOR, KY_COMPUTE>;
#define KY_CONV DefaultConv2dFprop
#else
using OutputOp =
    cutlass::epilogue::thread::LinearCombination<KY_OUTPUT, KY_ALIGNMENT_C, KY_ACCUMULATOR, KY_COMPUTE>;
#define KY_CONV DefaultConv2dFprop
#endif

using Kernel = typename cutlass::conv::kernel::KY_CONV<
    KY_INPUT, Layout, KY_INPUT, Layout, KY_OUTPUT, Layout, KY_ACCUMULATOR, cutlass::arch::OpClassTensorOp,
    cutlass::arch::Sm80, Tile, Warp, Instruction, OutputOp, Swizzle, KY_STAGES, KY_OPERATOR,
    cutlass::conv::IteratorAlgorithm::KY_ALGORITHM, cutlass::conv::StrideSupport::kStrided,
    KY_ALIGNMENT_A, KY_ALIGNMENT_B>::Kernel;

extern "C" __global__ __launch_bounds__(Kernel::kThreadCount) void KY_ENTRY(
    long long n, long long h, long long w, long long c, long long k, long long r, long long s, long long p, long long q,
    long long pad_h, long long pad_w, long long stride_h, long long stride_w, long long dilation_h,
    long long dilation_w, KY_INPUT* x, KY_INPUT* weight, KY_OUTPUT* source, KY_OUTPUT* vector, KY_OUTPUT* y,
    long long source_w, long long source_h, long long source_n, double alpha, double beta) {
  extern __shared__ __align__(16) char shared[];
  cutlass::conv::Conv2dProblemSize problem(
      int(n), int(h), int(w), int(c), int(k), int(r), int(s), int(p), int(q), int(pad_h), int(pad_w), int(stride_h),
      int(stride_w), int(dilation_h), int(dilation_w), cutlass::conv::Mode::kCrossCorrelation);
  typename OutputOp::Params scales{KY_COMPUTE(alpha), KY_COMPUTE(beta)};
  Layout of_x(c, w * c, h * w * c), of_weight(c, s * c, r * s * c), of_y(k, q * k, p * q * k);
  Layout of_source(source_w, source_h, source_n);
#ifdef KY_COMBINE
  typename Kernel::Arguments arguments(
      problem, {x, of_x}, {weight, of_weight}, {source, of_source}, {y, of_y}, scales,
      cutlass::conv::SplitKMode::kSerial, vector, nullptr, 0, 0);
#else
  typename Kernel::Arguments arguments(
      problem, {x, of_x}, {weight, of_weight}, {source, of_source}, {y, of_y}, scales);
#endif
  typename Kernel::Params params(arguments, nullptr);
  Kernel{}(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}

extern "C" __device__ const int ky_shared_nbytes = sizeof(typename Kernel::SharedStorage);
extern "C" __device__ const int ky_threads = Kernel::kThreadCount;

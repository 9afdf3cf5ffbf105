// Stands in for the kernels of CUTLASS 3, for GPUs from sm_90 on: every matmul's header includes them, the templates here
// are those of CUTLASS 2, and to read them takes as long as all that a template needs.
#pragma once
#include "cute/container/tuple.hpp"
#include "cutlass/gemm/gemm.h"
namespace cutlass::gemm::kernel {
template <class, class, class, class = void, class = void>
class GemmUniversal;
template <class>
struct IsCutlass3ArrayKernel : cute::false_type {};
}  // namespace cutlass::gemm::kernel

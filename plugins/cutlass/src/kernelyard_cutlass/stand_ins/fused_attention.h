// CUTLASS's fused attention is written for nvcc: it names the standard library and marks what runs on the host.
#pragma once
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"
namespace std {
using ::cuda::std::false_type;
using ::cuda::std::size_t;
using ::cuda::std::true_type;
}  // namespace std
#define __host__
#include "kernel_forward.h"

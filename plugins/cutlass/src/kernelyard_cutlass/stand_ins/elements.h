// What templates include that compute with CUTLASS's elements alone: one list, so that it is read once for all of them.
#pragma once
#include <cuda/std/cstdint>
#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/functional.h"
#include "cutlass/integer_subbyte.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"

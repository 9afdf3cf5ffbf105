/* The macro that exports a function, under the name that code written for TVM uses. Functions take DLTensor*, inputs
   first and then the outputs that they fill; what they return is not looked at, and what they throw is an error. */
#ifndef TVM_RUNTIME_PACKED_FUNC_H_
#define TVM_RUNTIME_PACKED_FUNC_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/c_runtime_api.h>

#define TVM_DLL_EXPORT_TYPED_FUNC(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)

#endif

/* Included by generated code written for TVM; tensors are all that functions here are given. */
#ifndef TVM_RUNTIME_CONTAINER_H_
#define TVM_RUNTIME_CONTAINER_H_

#include <tvm/ffi/container/array.h>
#include <tvm/runtime/c_runtime_api.h>

#endif

/* What code written for TVM finds in its C interface: DLPack's types, visibility, and namespaces to use. */
#ifndef TVM_RUNTIME_C_RUNTIME_API_H_
#define TVM_RUNTIME_C_RUNTIME_API_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifndef TVM_DLL
#define TVM_DLL __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#include <tvm/runtime/data_type.h>
namespace tvm {
namespace runtime {
namespace contrib {}
}  // namespace runtime
}  // namespace tvm
#endif

#endif

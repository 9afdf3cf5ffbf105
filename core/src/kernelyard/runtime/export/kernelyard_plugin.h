/* The C interface of a backend's kernels: functions in C or C++ that a model's steps call without Python between them.
   `CKernelRuntime` of kernelyard.runtime.api calls functions of the type ky_kernel.

   Tensors are those of DLPack: dense and row-major, on the CPU or on the device of the program. A kernel may be called
   from several threads at once, each with tensors and a context of its own; what `state` points to is shared, unless
   the runtime half makes it for each binding. */
#ifndef KERNELYARD_PLUGIN_H
#define KERNELYARD_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same types as in dlpack.h, which may be included before. */
#if !defined(DLPACK_DLPACK_H_) && !defined(KERNELYARD_DLPACK)
#define KERNELYARD_DLPACK
typedef struct { int32_t device_type, device_id; } DLDevice; /* 1 is the CPU */
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType; /* code: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
#endif

/* What a kernel may use while it runs. Later versions add fields at the end: one is there if KY_HAS(context, field). */
typedef struct ky_context {
  uint64_t nbytes;           /* of this structure */
  void* workspace;           /* scratch memory, a multiple of 64; what is in it is lost with the call */
  uint64_t workspace_nbytes; /* as many as the runtime half asked for */
  void* stream;              /* of the device, as DLPack numbers it; NULL on the CPU */
  int32_t threads;           /* as many as a call may use, itself included */
  int32_t reserved;
  /* The process's thread pool, for ky_parallel_for; NULL for one thread. */
  void (*run_team)(void (*member)(void*), void* data, uint32_t threads, uint32_t flags);
  int32_t (*team_member)(void);
  int32_t (*team_size)(void);
} ky_context;

#define KY_HAS(context, field) \
  ((context)->nbytes >= offsetof(ky_context, field) + sizeof((context)->field))

/* A kernel: 0 for success. state: what the runtime half gave. args: the operands, then the results; of the dtypes that
   the runtime half declared (CKernel(dtypes=...)), or of any. */
typedef int32_t (*ky_kernel)(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context);

/* --- parallel loops -------------------------------------------------------------------------------------------------
   body(data, begin, end) is called for parts of 0 ... count - 1, each number once, by up to context->threads threads;
   parts have at least `grain` numbers. The workers are those of all other kernels of the process. */
typedef void (*ky_body)(void* data, int64_t begin, int64_t end);

typedef struct { const ky_context* context; ky_body body; void* data; int64_t count; } ky_loop_;

static inline void ky_loop_member_(void* loop_of_team) {
  const ky_loop_* loop = (const ky_loop_*)loop_of_team;
  int64_t size = loop->context->team_size(), member = loop->context->team_member();
  int64_t share = loop->count / size, rest = loop->count % size;
  int64_t begin = member * share + (member < rest ? member : rest);
  int64_t end = begin + share + (member < rest);
  if (begin < end) loop->body(loop->data, begin, end);
}

static inline void ky_parallel_for(const ky_context* context, int64_t count, int64_t grain, ky_body body, void* data) {
  int64_t most = count / (grain > 0 ? grain : 1);
  uint32_t threads = (uint32_t)(most < context->threads ? most : context->threads);
  if (threads > 1 && context->run_team) {
    ky_loop_ loop;
    loop.context = context, loop.body = body, loop.data = data, loop.count = count;
    context->run_team(ky_loop_member_, &loop, threads, 0);
  } else if (count > 0) {
    body(data, 0, count);
  }
}

#ifdef __cplusplus
}
#endif
#endif

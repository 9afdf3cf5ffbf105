/* Kernels of a fictitious library, for the tests of kernelyard_plugin.h. */
#include <kernelyard_plugin.h>

typedef struct { float slope; int32_t parts; int64_t grain; void* stream; } scale_state;

typedef struct { const float* x; float* y; scale_state* of; } scale_loop;

static void scale_part(void* data, int64_t begin, int64_t end) {
  scale_loop* loop = (scale_loop*)data;
  __atomic_fetch_add(&loop->of->parts, 1, __ATOMIC_RELAXED);
  for (int64_t i = begin; i < end; i++) loop->y[i] = loop->x[i] * loop->of->slope;
}

static int64_t elements(const DLTensor* tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->ndim; axis++) count *= tensor->shape[axis];
  return count;
}

int32_t scale(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context) {
  scale_state* of = (scale_state*)state;
  if (num_args != 2) return 1;
  scale_loop loop;
  loop.x = (const float*)args[0]->data, loop.y = (float*)args[1]->data, loop.of = of;
  of->stream = context->stream;
  ky_parallel_for(context, elements(args[1]), of->grain, scale_part, &loop);
  return 0;
}

/* Each row reversed and added to itself, by way of the workspace. */
int32_t fold(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context) {
  const float* x = (const float*)args[0]->data;
  float* y = (float*)args[num_args - 1]->data;
  float* row = (float*)context->workspace;
  int64_t columns = args[0]->shape[1];
  (void)state;
  if (!KY_HAS(context, workspace_nbytes) || context->workspace_nbytes < (uint64_t)columns * sizeof(float)) return 2;
  for (int64_t i = 0; i < args[0]->shape[0]; i++) {
    for (int64_t j = 0; j < columns; j++) row[j] = x[i * columns + columns - 1 - j];
    for (int64_t j = 0; j < columns; j++) y[i * columns + j] = x[i * columns + j] + row[j];
  }
  return 0;
}

int32_t add(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context) {
  int64_t count = elements(args[2]), other = elements(args[1]);
  (void)state, (void)num_args, (void)context;
  for (int64_t i = 0; i < count; i++)
    ((float*)args[2]->data)[i] = ((float*)args[0]->data)[i] + ((float*)args[1]->data)[i % other];
  return 0;
}

int32_t refuse(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context) {
  (void)state, (void)args, (void)num_args, (void)context;
  return 42;
}

/* The C interface of a library that Executable.export_library made. One library holds one model.

   Tensors are those of DLPack: dense, row-major, on the CPU. Functions that return int32_t answer 0 for success;
   what went wrong says ky_last_error. */
#ifndef KERNELYARD_H
#define KERNELYARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DLPACK_DLPACK_H_ /* the same types as in dlpack.h, which may be included before */
typedef struct { int32_t device_type, device_id; } DLDevice; /* 1 is the CPU */
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType; /* code: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* NULL: dense and row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

typedef struct ky_model ky_model;

/* What the model takes and gives. A size that is only known when the model runs is -1. */
int32_t ky_num_inputs(void);
int32_t ky_num_outputs(void);
const char* ky_input_name(int32_t input);
const char* ky_output_name(int32_t output);
DLDataType ky_input_dtype(int32_t input);
DLDataType ky_output_dtype(int32_t output);
int32_t ky_input_rank(int32_t input);
int32_t ky_output_rank(int32_t output);
int64_t ky_input_dim(int32_t input, int32_t axis);
int64_t ky_output_dim(int32_t output, int32_t axis);

/* A model ready to run with that many threads (0: the processors of this process); NULL on failure, which includes
   models with parts that only Python can run. */
ky_model* ky_create(int32_t threads);
void ky_destroy(ky_model* model);

/* The shape that an output will have for these inputs (of which only the shapes are read). */
int32_t ky_output_shape(const DLTensor* inputs, int32_t output, int64_t* shape);

/* Run: `inputs` and `outputs` are arrays in the model's order; the memory of outputs is the caller's.
   A model runs for one thread at a time; others wait. To run at the same time, create several. */
int32_t ky_run(ky_model* model, const DLTensor* inputs, DLTensor* outputs);

/* What the last failure in this thread was. */
const char* ky_last_error(void);

#ifdef __cplusplus
}
#endif
#endif

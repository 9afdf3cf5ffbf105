/* The C interface of a library that Executable.export_library made. One library holds one model: its weights, and its
   entry functions, such as "main", or "prefill" and "decode".

   Tensors are those of DLPack: dense, row-major, on the CPU. Functions that return int32_t and are not about a number
   answer a ky_status; ky_last_error says in words what went wrong. All functions may be called from many threads at
   once; only ky_destroy must be the last that uses a model. */
#ifndef KERNELYARD_H
#define KERNELYARD_H

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
  int64_t* strides; /* NULL: dense and row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

typedef enum {
  KY_OK = 0,
  KY_BAD_CALL = 1,     /* no such function, a wrong number of tensors, NULL where something must be */
  KY_BAD_TENSOR = 2,   /* a tensor of a wrong rank, size, dtype, device or layout, or without memory */
  KY_NO_MEMORY = 3,
  KY_NEEDS_PYTHON = 4, /* a part of the function runs in Python only; kernelyard.load runs it there */
  KY_STEP_FAILED = 5   /* a kernel or library said that it failed */
} ky_status;

/* What the last failure in this thread was; "" before the first. */
const char* ky_last_error(void);

/* --- entry functions: by number, from 0; "main" comes first where there is one ---------------------------------------
   For a number that is out of range names are NULL, dtypes zero, and counts, ranks and sizes -1. */
int32_t ky_num_functions(void);
int32_t ky_find_function(const char* name); /* its number, -1 when there is none of that name */
const char* ky_function_name(int32_t function);
const char* ky_function_signature(int32_t function); /* for people: main(x: (n, 8) float32) -> (y: (n, 2) float32) */

/* What a function takes and gives. A size that is only known when it is called is -1. */
int32_t ky_num_inputs(int32_t function);
int32_t ky_num_outputs(int32_t function);
const char* ky_input_name(int32_t function, int32_t input);
const char* ky_output_name(int32_t function, int32_t output);
DLDataType ky_input_dtype(int32_t function, int32_t input);
DLDataType ky_output_dtype(int32_t function, int32_t output);
int32_t ky_input_rank(int32_t function, int32_t input);
int32_t ky_output_rank(int32_t function, int32_t output);
int64_t ky_input_dim(int32_t function, int32_t input, int32_t axis);
int64_t ky_output_dim(int32_t function, int32_t output, int32_t axis);

/* The shape that an output will have (ky_output_rank sizes) for inputs of which only ranks and shapes are read. */
int32_t ky_output_shape(int32_t function, const DLTensor* inputs, int32_t num_inputs, int32_t output, int64_t* shape);

/* --- running ---------------------------------------------------------------------------------------------------------
   A model ready to run, each call with that many threads, but no more than this process has processors (0: as many).
   NULL on failure, and where all of its functions need Python. */
typedef struct ky_model ky_model;
ky_model* ky_create(int32_t threads);
void ky_destroy(ky_model* model);

/* Run a function: `inputs` and `outputs` are arrays in the function's order. The memory of outputs is the caller's; it
   may be that of an input. Weights are shared by all calls; calls at the same time have memory of their own. */
int32_t ky_run(ky_model* model, int32_t function, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
               int32_t num_outputs);

#ifdef __cplusplus
}
#endif
#endif

/* What a program's tables are made of, and what their functions call. Written before the tables; `program.c` reads them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernelyard.h"
#include "sizes.h"

#define KY_MOST_BYTES (INT64_C(1) << 56) /* more than any machine has; sums of some of these do not overflow */

typedef struct { const char* name; DLDataType dtype; int32_t rank; const int64_t* dims; } ky_spec;
typedef struct { int64_t offset, nbytes; } ky_constant;
/* kind: 'i' input, 'c' constant, 'b' buffer, 'a' alias of `root`; needed from step `first` to step `last` */
typedef struct { char kind; int32_t number, root, first, last; } ky_register;
typedef struct {
  const char* symbol;
  int32_t (*prepare)(const void* const*, int32_t, void**);
  int32_t (*bind)(void*, const int64_t*, int32_t, void**, int64_t*);
  int32_t (*run)(void**, void*, int32_t, void*);
  void (*unbind)(void*);
  void (*release)(void*);
  int32_t one_thread, num_constants;
  const int32_t* constants;
} ky_kernel;
/* sizes: which of the program's symbols the kernel gets */
typedef struct { const char* label; int32_t kernel, num_args, num_sizes; const int32_t *args, *sizes; } ky_step;
/* An entry function. needs_python: why it runs there only, NULL where it does not; it has no steps then.
   solve: sizes from the inputs' shapes. measure: the bytes of every register. output_dims: the shape of an output. */
typedef struct {
  const char *name, *signature, *needs_python;
  int32_t num_symbols, num_inputs, num_outputs, num_registers, num_steps, max_args;
  const ky_spec *inputs, *outputs;
  const ky_register* registers;
  const int32_t* results;
  const ky_step* steps;
  int32_t (*solve)(const DLTensor*, int64_t*);
  int32_t (*measure)(const int64_t*, int64_t*);
  void (*output_dims)(const int64_t*, int32_t, int64_t*);
} ky_program;

/* The model's artifact, which has the constants. */
extern const unsigned char ky_artifact[];

static _Thread_local char ky_error[1024];

static int32_t ky_fail(int32_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));
static int32_t ky_fail(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(ky_error, sizeof ky_error, format, arguments);
  va_end(arguments);
  return status;
}

/* The bytes of a dense tensor; -1 where a size has no value or there are too many. */
static inline int64_t ky_nbytes(int64_t itemsize, int32_t rank, const int64_t* shape) {
  int64_t nbytes = itemsize;
  for (int32_t i = 0; i < rank; i++)
    if (shape[i] < 0) return -1;
  for (int32_t i = 0; i < rank; i++)
    if (shape[i] == 0) return 0;
  for (int32_t i = 0; i < rank; i++)
    if (nbytes > KY_MOST_BYTES / shape[i]) return -1;
    else nbytes *= shape[i];
  return nbytes;
}

/* --- sizes: what `solve` is made of ------------------------------------------------------------------------------ */
/* A symbol is the size that was found. */
static inline int32_t ky_take(int64_t* symbol, int64_t found, const char* name, int32_t axis, const char* dim) {
  if (found < 1) return ky_fail(KY_BAD_TENSOR, "%s: axis %d is empty; it is %s, a size of at least 1", name, axis, dim);
  *symbol = found;
  return KY_OK;
}

/* The one unknown symbol of `slope * symbol + offset` is what makes the dim the size that was found; `at` has the values
   of the dim where the symbol is 1, 2 and 3. */
static inline int32_t ky_solve_affine(int64_t* symbol, const int64_t* at, int64_t found, const char* name, int32_t axis, const char* dim) {
  int64_t slope = ky_plus(at[1], ky_times(at[0], -1)), rest = ky_plus(found, ky_times(at[0], -1));
  int is_affine = slope != KY_NONE && slope != 0 && ky_plus(at[2], ky_times(at[1], -1)) == slope;
  if (!is_affine || rest == KY_NONE || rest % slope || rest / slope < 0)
    return ky_fail(KY_BAD_TENSOR, "%s: axis %d has %lld elements, which %s cannot be", name, axis, (long long)found, dim);
  *symbol = rest / slope + 1;
  return KY_OK;
}

/* dim: NULL for a number. */
static inline int32_t ky_expect(int64_t found, int64_t expected, const char* name, int32_t axis, const char* dim) {
  if (dim && expected == KY_NONE)
    return ky_fail(KY_BAD_TENSOR, "%s: axis %d has %lld elements, which %s cannot be", name, axis, (long long)found, dim);
  if (found == expected) return KY_OK;
  return ky_fail(KY_BAD_TENSOR, "%s: axis %d has %lld elements, expected %s%s%lld", name, axis, (long long)found, dim ? dim : "",
                 dim ? " = " : "", (long long)expected);
}

/* Two dims that the program needs to be equal. */
static inline int32_t ky_equal(int64_t left, int64_t right, const char* where, const char* left_dim, const char* right_dim) {
  if (left != KY_NONE && left == right) return KY_OK;
  if (ky_lacks(left, right))
    return ky_fail(KY_BAD_TENSOR, "%s: the sizes of the inputs are inconsistent: %s or %s has no value", where, left_dim, right_dim);
  return ky_fail(KY_BAD_TENSOR, "%s: the sizes of the inputs are inconsistent: %s is %lld, but %s is %lld", where, left_dim, (long long)left, right_dim, (long long)right);
}

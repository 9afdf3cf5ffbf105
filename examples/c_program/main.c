/* Runs a function of a model without Python: reads float32 inputs from files, writes float32 outputs beside them.

   usage: program FUNCTION SIZE input0.bin ... output0.bin ...
   SIZE stands for every size that the function leaves open. */
#include <kernelyard.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TENSORS = 8, MAX_RANK = 8 };

static int64_t shapes[2 * MAX_TENSORS][MAX_RANK];

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ky_last_error());
  return 1;
}

static int usage(const char* program) {
  fprintf(stderr, "usage: %s FUNCTION SIZE, a file for each input, a file for each output; the functions are\n", program);
  for (int32_t f = 0; f < ky_num_functions(); f++) fprintf(stderr, "  %s\n", ky_function_signature(f));
  return 2;
}

static int64_t elements(const DLTensor* tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->ndim; axis++) count *= tensor->shape[axis];
  return count;
}

static void allocate(DLTensor* tensor) {
  tensor->data = aligned_alloc(64, ((size_t)elements(tensor) * sizeof(float) / 64 + 1) * 64);
}

static int transfer(const DLTensor* tensor, const char* path, int is_input) {
  FILE* file = fopen(path, is_input ? "rb" : "wb");
  if (!file || !tensor->data) return perror(path), 1;
  size_t count = (size_t)elements(tensor);
  size_t done = is_input ? fread(tensor->data, sizeof(float), count, file) : fwrite(tensor->data, sizeof(float), count, file);
  if (fclose(file) || done != count) return fprintf(stderr, "%s: %zu of %zu elements\n", path, done, count), 1;
  return 0;
}

int main(int argc, char** argv) {
  int32_t f = argc > 1 ? ky_find_function(argv[1]) : -1;
  int32_t num_inputs = ky_num_inputs(f), num_outputs = ky_num_outputs(f);
  if (f < 0 || argc != 3 + num_inputs + num_outputs || num_inputs > MAX_TENSORS || num_outputs > MAX_TENSORS) return usage(argv[0]);

  DLTensor inputs[MAX_TENSORS] = {0}, outputs[MAX_TENSORS] = {0};
  for (int32_t i = 0; i < num_inputs; i++) {
    inputs[i] = (DLTensor){.device = {1, 0}, .ndim = ky_input_rank(f, i), .dtype = ky_input_dtype(f, i), .shape = shapes[i]};
    for (int32_t axis = 0; axis < inputs[i].ndim; axis++) {
      int64_t size = ky_input_dim(f, i, axis);
      shapes[i][axis] = size < 0 ? atoll(argv[2]) : size;
    }
  }
  for (int32_t i = 0; i < num_outputs; i++) {
    int64_t* shape = shapes[MAX_TENSORS + i];
    outputs[i] = (DLTensor){.device = {1, 0}, .ndim = ky_output_rank(f, i), .dtype = ky_output_dtype(f, i), .shape = shape};
    if (ky_output_shape(f, inputs, num_inputs, i, shape)) return fail("ky_output_shape");
    allocate(&outputs[i]);
  }
  for (int32_t i = 0; i < num_inputs; i++) {
    allocate(&inputs[i]);
    if (transfer(&inputs[i], argv[3 + i], 1)) return 1;
  }

  ky_model* model = ky_create(0);
  if (!model) return fail("ky_create");
  if (ky_run(model, f, inputs, num_inputs, outputs, num_outputs)) return fail("ky_run");
  ky_destroy(model);

  for (int32_t i = 0; i < num_inputs; i++) free(inputs[i].data);
  for (int32_t i = 0; i < num_outputs; i++) {
    if (transfer(&outputs[i], argv[3 + num_inputs + i], 0)) return 1;
    printf("%s: %lld elements\n", ky_output_name(f, i), (long long)elements(&outputs[i]));
    free(outputs[i].data);
  }
  return 0;
}

/* Runs a model without Python: reads float32 inputs from files, writes float32 outputs beside them.

   usage: program SIZE input0.bin ... output0.bin ...
   SIZE stands for every size that the model leaves open. */
#include <kernelyard.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TENSORS = 8, MAX_RANK = 8 };

static int64_t shapes[2 * MAX_TENSORS][MAX_RANK];

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ky_last_error());
  return 1;
}

static int64_t elements(const DLTensor* tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->ndim; axis++) count *= tensor->shape[axis];
  return count;
}

static DLTensor tensor(int64_t* shape, int32_t rank, DLDataType dtype) {
  DLTensor made = {.device = {1, 0}, .ndim = rank, .dtype = dtype, .shape = shape};
  made.data = aligned_alloc(64, (elements(&made) * sizeof(float) + 63) / 64 * 64);
  return made;
}

static int transfer(DLTensor* tensor, const char* path, int is_input) {
  FILE* file = fopen(path, is_input ? "rb" : "wb");
  if (!file) return 1;
  size_t count = (size_t)elements(tensor);
  size_t done = is_input ? fread(tensor->data, sizeof(float), count, file) : fwrite(tensor->data, sizeof(float), count, file);
  return fclose(file) || done != count;
}

int main(int argc, char** argv) {
  int32_t num_inputs = ky_num_inputs(), num_outputs = ky_num_outputs();
  if (argc != 2 + num_inputs + num_outputs || num_inputs > MAX_TENSORS || num_outputs > MAX_TENSORS) {
    fprintf(stderr, "usage: %s SIZE, %d files to read, %d files to write\n", argv[0], num_inputs, num_outputs);
    return 2;
  }
  DLTensor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
  for (int32_t i = 0; i < num_inputs; i++) {
    int32_t rank = ky_input_rank(i);
    for (int32_t axis = 0; axis < rank; axis++) {
      int64_t size = ky_input_dim(i, axis);
      shapes[i][axis] = size < 0 ? atoll(argv[1]) : size;
    }
    inputs[i] = tensor(shapes[i], rank, ky_input_dtype(i));
    if (transfer(&inputs[i], argv[2 + i], 1)) return fail(argv[2 + i]);
  }
  for (int32_t i = 0; i < num_outputs; i++) {
    int64_t* shape = shapes[MAX_TENSORS + i];
    if (ky_output_shape(inputs, i, shape)) return fail("ky_output_shape");
    outputs[i] = tensor(shape, ky_output_rank(i), ky_output_dtype(i));
  }
  ky_model* model = ky_create(0);
  if (!model) return fail("ky_create");
  if (ky_run(model, inputs, outputs)) return fail("ky_run");
  ky_destroy(model);
  for (int32_t i = 0; i < num_outputs; i++) {
    if (transfer(&outputs[i], argv[2 + num_inputs + i], 0)) return fail(argv[2 + num_inputs + i]);
    printf("%s: %lld elements\n", ky_output_name(i), (long long)elements(&outputs[i]));
    free(outputs[i].data);
  }
  for (int32_t i = 0; i < num_inputs; i++) free(inputs[i].data);
  return 0;
}

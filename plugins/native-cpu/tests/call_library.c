/* Calls functions of an exported library, for tests on an emulated machine. On stdin, for each call: the length of the
   function's name and the name; for each input its sizes and its bytes. On stdout: the status, and for 0 each output's
   sizes and bytes. Numbers are int64. */
#include <kernelyard.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 16 };

static int64_t nbytes_of(const DLTensor* tensor) {
  int64_t bits = tensor->dtype.bits;
  for (int axis = 0; axis < tensor->ndim; axis++) bits *= tensor->shape[axis];
  return bits / 8;
}

static void make(DLTensor* tensor, DLDataType dtype, int32_t rank, int64_t* shape) {
  *tensor = (DLTensor){.device = {1, 0}, .ndim = rank, .dtype = dtype, .shape = shape};
}

static int32_t call(ky_model* model, const char* name, int64_t in_sizes[][MOST], int64_t out_sizes[][MOST]) {
  DLTensor inputs[MOST], outputs[MOST];
  int32_t f = ky_find_function(name), num_inputs = ky_num_inputs(f), num_outputs = ky_num_outputs(f);
  for (int i = 0; i < num_inputs; i++) {
    make(&inputs[i], ky_input_dtype(f, i), ky_input_rank(f, i), in_sizes[i]);
    fread(in_sizes[i], sizeof(int64_t), inputs[i].ndim, stdin);
    inputs[i].data = aligned_alloc(64, nbytes_of(&inputs[i]) / 64 * 64 + 64);
    fread(inputs[i].data, 1, nbytes_of(&inputs[i]), stdin);
  }
  for (int i = 0; i < num_outputs; i++) {
    make(&outputs[i], ky_output_dtype(f, i), ky_output_rank(f, i), out_sizes[i]);
    if (ky_output_shape(f, inputs, num_inputs, i, out_sizes[i])) return -1;
    outputs[i].data = aligned_alloc(64, nbytes_of(&outputs[i]) / 64 * 64 + 64);
  }
  int64_t status = ky_run(model, f, inputs, num_inputs, outputs, num_outputs);
  if (status) fprintf(stderr, "%s: %s\n", name, ky_last_error());
  fwrite(&status, sizeof status, 1, stdout);
  for (int i = 0; i < num_outputs && !status; i++) {
    fwrite(out_sizes[i], sizeof(int64_t), outputs[i].ndim, stdout);
    fwrite(outputs[i].data, 1, nbytes_of(&outputs[i]), stdout);
  }
  return 0;
}

int main(int argc, char** argv) {
  int64_t length, in_sizes[MOST][MOST], out_sizes[MOST][MOST];
  ky_model* model = ky_create(argc > 1 ? atoi(argv[1]) : 1);
  if (!model) fprintf(stderr, "%s\n", ky_last_error());
  while (model && fread(&length, sizeof length, 1, stdin) == 1) {
    char name[256] = {0};
    fread(name, 1, length, stdin);
    if (call(model, name, in_sizes, out_sizes)) {
      fprintf(stderr, "%s: %s\n", name, ky_last_error());
      return 1;
    }
  }
  return !model;
}

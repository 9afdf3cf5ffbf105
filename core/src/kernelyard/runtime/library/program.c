/* Runs the program whose tables stand above: sizes from the inputs' shapes, memory, one call per step. */

#define KY_ALIGNMENT 64
#define KY_CALL_ALIGNMENT 16 /* of inputs and outputs that steps may use where they are */

struct ky_model {
  pthread_mutex_t lock;
  int32_t threads;
  int is_planned;
  int64_t sizes[KY_SYMBOLS + 1];
  void* constants[KY_CONSTANTS + 1];
  void* owned[KY_CONSTANTS + 1];
  void* shared[KY_FUNCTIONS + 1];
  const void** given[KY_FUNCTIONS + 1];
  void* calls[KY_STEPS + 1];
  char* arena;
  char* workspace;
  int64_t nbytes[KY_REGISTERS + 1];
  int64_t offsets[KY_REGISTERS + 1];
};

static _Thread_local char ky_error[1024];

const char* ky_last_error(void) { return ky_error; }

static int32_t ky_fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(ky_error, sizeof ky_error, format, arguments);
  va_end(arguments);
  return 1;
}

/* --- what the model takes and gives ------------------------------------------------------------------------------ */
int32_t ky_num_inputs(void) { return KY_INPUTS; }
int32_t ky_num_outputs(void) { return KY_OUTPUTS; }
static int ky_is(int32_t number, int32_t count) { return number >= 0 && number < count; }
#define KY_DESCRIBE(side, table, count)                                                                              \
  const char* ky_##side##_name(int32_t i) { return ky_is(i, count) ? table[i].name : NULL; }                         \
  DLDataType ky_##side##_dtype(int32_t i) { return ky_is(i, count) ? table[i].dtype : (DLDataType){0, 0, 0}; }       \
  int32_t ky_##side##_rank(int32_t i) { return ky_is(i, count) ? table[i].rank : -1; }                               \
  int64_t ky_##side##_dim(int32_t i, int32_t axis) {                                                                 \
    return ky_is(i, count) && ky_is(axis, table[i].rank) ? table[i].dims[axis] : -1;                                 \
  }
KY_DESCRIBE(input, ky_inputs, KY_INPUTS)
KY_DESCRIBE(output, ky_outputs, KY_OUTPUTS)

/* --- tensors from outside ---------------------------------------------------------------------------------------- */
static int ky_is_dense(const DLTensor* tensor) {
  int64_t step = 1;
  for (int32_t axis = 0; axis < tensor->ndim; axis++)
    if (tensor->shape[axis] == 0) return 1;
  for (int32_t axis = tensor->ndim - 1; tensor->strides && axis >= 0; axis--) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != step) return 0;
    step *= tensor->shape[axis];
  }
  return 1;
}

static int32_t ky_check_tensor(const DLTensor* tensor, const ky_spec* spec) {
  if (tensor->device.device_type != 1) return ky_fail("%s: the tensor is not on the CPU", spec->name);
  if (tensor->ndim != spec->rank) return ky_fail("%s: rank %d, expected %d", spec->name, tensor->ndim, spec->rank);
  if (tensor->dtype.code != spec->dtype.code || tensor->dtype.bits != spec->dtype.bits || tensor->dtype.lanes != 1)
    return ky_fail("%s: dtype code %d of %d bits, expected code %d of %d bits", spec->name, tensor->dtype.code,
                   tensor->dtype.bits, spec->dtype.code, spec->dtype.bits);
  if (!ky_is_dense(tensor)) return ky_fail("%s: the tensor is not dense and row-major", spec->name);
  return 0;
}

static char* ky_data(const DLTensor* tensor) { return (char*)tensor->data + tensor->byte_offset; }

static int ky_usable(const char* data) { return (uintptr_t)data % KY_CALL_ALIGNMENT == 0; }

int32_t ky_output_shape(const DLTensor* inputs, int32_t output, int64_t* shape) {
  int64_t sizes[KY_SYMBOLS + 1];
  if (!ky_is(output, KY_OUTPUTS)) return ky_fail("there is no output %d", output);
  for (int32_t i = 0; i < KY_INPUTS; i++)
    if (inputs[i].ndim != ky_inputs[i].rank) return ky_fail("%s: rank %d, expected %d", ky_inputs[i].name, inputs[i].ndim, ky_inputs[i].rank);
  if (ky_solve(inputs, sizes)) return 1;
  ky_output_dims(sizes, output, shape);
  return 0;
}

/* --- memory ------------------------------------------------------------------------------------------------------ */
static int64_t ky_aligned(int64_t nbytes) { return (nbytes + KY_ALIGNMENT - 1) / KY_ALIGNMENT * KY_ALIGNMENT; }

static void* ky_allocate(int64_t nbytes) { return aligned_alloc(KY_ALIGNMENT, (size_t)ky_aligned(nbytes + 1)); }

static int ky_overlap(const ky_register* a, const ky_register* b) { return a->first <= b->last && b->first <= a->last; }

/* First fit by order of size: registers that are needed at the same time do not overlap. Returns the arena's size. */
static int64_t ky_lay_out(ky_model* model) {
  int32_t placed[KY_REGISTERS + 1], count = 0; /* by offset */
  char done[KY_REGISTERS + 1] = {0};
  int64_t total = 0;
  for (;;) {
    int32_t next = -1;
    for (int32_t r = 0; r < KY_REGISTERS; r++)
      if (!done[r] && ky_registers[r].first <= ky_registers[r].last && (next < 0 || model->nbytes[r] > model->nbytes[next])) next = r;
    if (next < 0) return total;
    int64_t size = ky_aligned(model->nbytes[next]), offset = 0;
    for (int32_t i = 0; i < count; i++) {
      int64_t start = model->offsets[placed[i]], end = start + ky_aligned(model->nbytes[placed[i]]);
      if (!ky_overlap(&ky_registers[next], &ky_registers[placed[i]]) || end <= offset) continue;
      if (start >= offset + size) break;
      offset = end;
    }
    int32_t place = count++;
    for (; place > 0 && model->offsets[placed[place - 1]] > offset; place--) placed[place] = placed[place - 1];
    placed[place] = next;
    model->offsets[next] = offset;
    done[next] = 1;
    if (offset + size > total) total = offset + size;
  }
}

static void ky_forget_plan(ky_model* model) {
  for (int32_t i = 0; i < KY_STEPS; i++) {
    if (model->calls[i]) ky_functions[ky_steps[i].function].unbind(model->calls[i]);
    model->calls[i] = NULL;
  }
  free(model->arena);
  free(model->workspace);
  model->arena = model->workspace = NULL;
  model->is_planned = 0;
}

static int32_t ky_plan(ky_model* model, const int64_t* sizes) {
  ky_forget_plan(model);
  if (ky_measure(sizes, model->nbytes)) return 1;
  model->arena = ky_allocate(ky_lay_out(model));
  int64_t largest = 0;
  for (int32_t i = 0; i < KY_STEPS; i++) {
    const ky_step* step = &ky_steps[i];
    const ky_function* function = &ky_functions[step->function];
    int64_t own[KY_SYMBOLS + 1], workspace = 0;
    for (int32_t k = 0; k < function->num_sizes; k++) own[k] = sizes[function->sizes[k]];
    int32_t status = function->bind(model->shared[step->function], own, model->threads, &model->calls[i], &workspace);
    if (status) return ky_fail("%s cannot be bound: status %d", step->label, status);
    if (workspace > largest) largest = workspace;
  }
  model->workspace = ky_allocate(largest);
  if (!model->arena || !model->workspace) return ky_fail("there is not enough memory");
  memcpy(model->sizes, sizes, sizeof model->sizes);
  model->is_planned = 1;
  return 0;
}

/* --- running ----------------------------------------------------------------------------------------------------- */
/* Where each register lies in this run: with the caller where it may, else in the arena. */
static void ky_place_registers(ky_model* model, const DLTensor* inputs, DLTensor* outputs, char** address) {
  for (int32_t r = 0; r < KY_REGISTERS; r++) {
    const ky_register* reg = &ky_registers[r];
    address[r] = model->arena + model->offsets[r];
    if (reg->kind == 'c') address[r] = model->constants[reg->number];
    if (reg->kind == 'a') address[r] = NULL;
    if (reg->kind == 'i') {
      char* data = ky_data(&inputs[reg->number]);
      if (ky_usable(data)) address[r] = data;
      else if (reg->first <= reg->last) memcpy(address[r], data, (size_t)model->nbytes[r]);
    }
  }
  for (int32_t i = KY_OUTPUTS - 1; i >= 0; i--) {
    int32_t root = ky_registers[ky_results[i]].root;
    if (ky_registers[root].kind == 'b' && ky_usable(ky_data(&outputs[i]))) address[root] = ky_data(&outputs[i]);
  }
  for (int32_t r = 0; r < KY_REGISTERS; r++) address[r] = address[ky_registers[r].root];
}

static int32_t ky_run_steps(ky_model* model, char** address) {
  void* args[KY_MAX_ARGS + 1];
  for (int32_t i = 0; i < KY_STEPS; i++) {
    const ky_step* step = &ky_steps[i];
    for (int32_t k = 0; k < step->num_args; k++) args[k] = address[step->args[k]];
    int32_t status = ky_functions[step->function].run(args, model->calls[i], model->threads, model->workspace);
    if (status) return ky_fail("%s failed: status %d", step->label, status);
  }
  return 0;
}

static int32_t ky_run_locked(ky_model* model, const DLTensor* inputs, DLTensor* outputs) {
  int64_t sizes[KY_SYMBOLS + 1] = {0}, shape[KY_MAX_RANK + 1];
  char* address[KY_REGISTERS + 1];
  for (int32_t i = 0; i < KY_INPUTS; i++)
    if (ky_check_tensor(&inputs[i], &ky_inputs[i])) return 1;
  if (ky_solve(inputs, sizes)) return 1;
  for (int32_t i = 0; i < KY_OUTPUTS; i++) {
    if (ky_check_tensor(&outputs[i], &ky_outputs[i])) return 1;
    ky_output_dims(sizes, i, shape);
    for (int32_t axis = 0; axis < ky_outputs[i].rank; axis++)
      if (outputs[i].shape[axis] != shape[axis])
        return ky_fail("%s: axis %d has %lld elements, expected %lld", ky_outputs[i].name, axis, (long long)outputs[i].shape[axis], (long long)shape[axis]);
  }
  if (!model->is_planned || memcmp(sizes, model->sizes, sizeof sizes))
    if (ky_plan(model, sizes)) return 1;
  ky_place_registers(model, inputs, outputs, address);
  if (ky_run_steps(model, address)) return 1;
  for (int32_t i = 0; i < KY_OUTPUTS; i++) {
    char *from = address[ky_results[i]], *to = ky_data(&outputs[i]);
    if (from != to) memcpy(to, from, (size_t)model->nbytes[ky_results[i]]);
  }
  return 0;
}

int32_t ky_run(ky_model* model, const DLTensor* inputs, DLTensor* outputs) {
  if (!model) return ky_fail("there is no model");
  pthread_mutex_lock(&model->lock);
  int32_t status = ky_run_locked(model, inputs, outputs);
  pthread_mutex_unlock(&model->lock);
  return status;
}

/* --- models ------------------------------------------------------------------------------------------------------ */
static int32_t ky_processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static int32_t ky_fill_model(ky_model* model) {
  for (int32_t i = 0; i < KY_CONSTANTS; i++) {
    const unsigned char* bytes = ky_artifact + ky_constants[i].offset;
    model->constants[i] = (void*)bytes;
    if ((uintptr_t)bytes % KY_ALIGNMENT == 0) continue;
    model->constants[i] = model->owned[i] = ky_allocate(ky_constants[i].nbytes);
    if (!model->owned[i]) return ky_fail("there is not enough memory");
    memcpy(model->owned[i], bytes, (size_t)ky_constants[i].nbytes);
  }
  for (int32_t i = 0; i < KY_FUNCTIONS; i++) {
    const ky_function* function = &ky_functions[i];
    model->given[i] = calloc((size_t)function->num_constants + 1, sizeof(void*));
    if (!model->given[i]) return ky_fail("there is not enough memory");
    for (int32_t k = 0; k < function->num_constants; k++) model->given[i][k] = model->constants[function->constants[k]];
    int32_t status = function->prepare(model->given[i], model->threads, &model->shared[i]);
    if (status == KY_WRONG_CPU) return ky_fail("%s: this CPU lacks instructions that the code was compiled for", function->name);
    if (status) return ky_fail("%s cannot be prepared: status %d", function->name, status);
  }
  return 0;
}

void ky_destroy(ky_model* model) {
  if (!model) return;
  ky_forget_plan(model);
  for (int32_t i = 0; i < KY_FUNCTIONS; i++) {
    if (model->shared[i]) ky_functions[i].release(model->shared[i]);
    free(model->given[i]);
  }
  for (int32_t i = 0; i < KY_CONSTANTS; i++) free(model->owned[i]);
  pthread_mutex_destroy(&model->lock);
  free(model);
}

ky_model* ky_create(int32_t threads) {
  if (ky_needs_python) {
    ky_fail("%s", ky_needs_python);
    return NULL;
  }
  ky_model* model = calloc(1, sizeof *model);
  if (!model) {
    ky_fail("there is not enough memory");
    return NULL;
  }
  pthread_mutex_init(&model->lock, NULL);
  model->threads = threads > 0 ? threads : ky_processors();
  if (ky_fill_model(model)) {
    ky_destroy(model);
    return NULL;
  }
  return model;
}

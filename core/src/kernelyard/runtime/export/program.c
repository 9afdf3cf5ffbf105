/* Runs the programs whose tables stand above: sizes from the inputs' shapes, memory, one call per step. */

#define KY_ALIGNMENT 64
#define KY_CALL_ALIGNMENT 16 /* of inputs and outputs that steps may use where they are */
#define KY_PLANS 16          /* that a lane keeps */

/* What is known of a program once the sizes are, with its steps bound for one lane. */
typedef struct ky_plan {
  struct ky_plan* next; /* the one used before */
  const ky_program* program;
  int64_t *sizes, *nbytes, *offsets, arena_nbytes, workspace_nbytes;
  void** calls;
  void** args;
  char** address;
} ky_plan;

/* What one running call has to itself. */
typedef struct ky_lane {
  struct ky_lane* next;
  ky_plan* plans; /* last used first */
  char *arena, *workspace;
  int64_t arena_nbytes, workspace_nbytes;
} ky_lane;

struct ky_model {
  pthread_mutex_t lock; /* of `idle` */
  ky_lane* idle;
  int32_t threads;
  void* constants[KY_CONSTANTS + 1];
  void* owned[KY_CONSTANTS + 1];
  const void** given[KY_KERNELS + 1];
  void* shared[KY_KERNELS + 1];
};

static int32_t ky_threads_of(const ky_model* model, const ky_kernel* kernel) { return kernel->one_thread ? 1 : model->threads; }

/* Kernels need not be safe against being prepared, bound and released at the same time. */
static pthread_mutex_t ky_binding = PTHREAD_MUTEX_INITIALIZER;

const char* ky_last_error(void) { return ky_error; }

/* --- what the functions take and give ----------------------------------------------------------------------------- */
static int ky_is(int32_t number, int32_t count) { return number >= 0 && number < count; }
static const ky_program* ky_program_of(int32_t function) { return ky_is(function, KY_PROGRAMS) ? &ky_programs[function] : NULL; }

int32_t ky_num_functions(void) { return KY_PROGRAMS; }
const char* ky_function_name(int32_t f) { return ky_is(f, KY_PROGRAMS) ? ky_programs[f].name : NULL; }
const char* ky_function_signature(int32_t f) { return ky_is(f, KY_PROGRAMS) ? ky_programs[f].signature : NULL; }

int32_t ky_find_function(const char* name) {
  for (int32_t f = 0; name && f < KY_PROGRAMS; f++)
    if (!strcmp(ky_programs[f].name, name)) return f;
  ky_fail(KY_BAD_CALL, "there is no function %s; ky_function_name has those that are there", name ? name : "without a name");
  return -1;
}

#define KY_DESCRIBE(side)                                                                                            \
  static const ky_spec* ky_##side##_spec(int32_t f, int32_t i) {                                                     \
    return ky_is(f, KY_PROGRAMS) && ky_is(i, ky_programs[f].num_##side##s) ? &ky_programs[f].side##s[i] : NULL;      \
  }                                                                                                                  \
  int32_t ky_num_##side##s(int32_t f) { return ky_is(f, KY_PROGRAMS) ? ky_programs[f].num_##side##s : -1; }          \
  const char* ky_##side##_name(int32_t f, int32_t i) {                                                               \
    const ky_spec* spec = ky_##side##_spec(f, i);                                                                    \
    return spec ? spec->name : NULL;                                                                                 \
  }                                                                                                                  \
  DLDataType ky_##side##_dtype(int32_t f, int32_t i) {                                                               \
    const ky_spec* spec = ky_##side##_spec(f, i);                                                                    \
    return spec ? spec->dtype : (DLDataType){0, 0, 0};                                                               \
  }                                                                                                                  \
  int32_t ky_##side##_rank(int32_t f, int32_t i) {                                                                   \
    const ky_spec* spec = ky_##side##_spec(f, i);                                                                    \
    return spec ? spec->rank : -1;                                                                                   \
  }                                                                                                                  \
  int64_t ky_##side##_dim(int32_t f, int32_t i, int32_t axis) {                                                      \
    const ky_spec* spec = ky_##side##_spec(f, i);                                                                    \
    return spec && ky_is(axis, spec->rank) ? spec->dims[axis] : -1;                                                  \
  }
KY_DESCRIBE(input)
KY_DESCRIBE(output)

/* --- tensors from outside ----------------------------------------------------------------------------------------- */
static const char* ky_kind(uint8_t code) {
  static const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  return code < sizeof kinds / sizeof *kinds ? kinds[code] : "of unknown kind, bits: ";
}

static int ky_is_dense(const DLTensor* tensor) {
  int64_t step = 1;
  for (int32_t axis = 0; axis < tensor->ndim; axis++)
    if (tensor->shape[axis] == 0) return 1;
  for (int32_t axis = tensor->ndim - 1; tensor->strides && axis >= 0; axis--) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != step) return 0;
    step = ky_times(step, tensor->shape[axis]);
  }
  return 1;
}

static int32_t ky_check_count(const ky_program* program, const char* side, const DLTensor* tensors, int32_t found, int32_t expected) {
  if (found != expected) return ky_fail(KY_BAD_CALL, "%s: %d %s, expected %d", program->name, found, side, expected);
  if (expected && !tensors) return ky_fail(KY_BAD_CALL, "%s: the %s are NULL", program->name, side);
  return KY_OK;
}

static int32_t ky_check_shape(const DLTensor* tensor, const ky_spec* spec) {
  if (tensor->ndim != spec->rank) return ky_fail(KY_BAD_TENSOR, "%s: rank %d, expected %d", spec->name, tensor->ndim, spec->rank);
  if (spec->rank && !tensor->shape) return ky_fail(KY_BAD_TENSOR, "%s: the shape is NULL", spec->name);
  for (int32_t axis = 0; axis < spec->rank; axis++)
    if (tensor->shape[axis] < 0) return ky_fail(KY_BAD_TENSOR, "%s: axis %d has %lld elements", spec->name, axis, (long long)tensor->shape[axis]);
  return KY_OK;
}

static int32_t ky_check_tensor(const DLTensor* tensor, const ky_spec* spec) {
  if (ky_check_shape(tensor, spec)) return KY_BAD_TENSOR;
  if (tensor->device.device_type != 1) return ky_fail(KY_BAD_TENSOR, "%s: the tensor is not on the CPU", spec->name);
  if (tensor->dtype.code != spec->dtype.code || tensor->dtype.bits != spec->dtype.bits || tensor->dtype.lanes != 1)
    return ky_fail(KY_BAD_TENSOR, "%s: dtype %s%d with %d lanes, expected %s%d with 1", spec->name, ky_kind(tensor->dtype.code),
                   tensor->dtype.bits, tensor->dtype.lanes, ky_kind(spec->dtype.code), spec->dtype.bits);
  if (!ky_is_dense(tensor)) return ky_fail(KY_BAD_TENSOR, "%s: the tensor is not contiguous in row-major order", spec->name);
  if (!tensor->data && ky_nbytes(1, tensor->ndim, tensor->shape)) return ky_fail(KY_BAD_TENSOR, "%s: the data is NULL", spec->name);
  return KY_OK;
}

static int32_t ky_check_output(const ky_program* program, int32_t output, const DLTensor* tensor, const int64_t* shape) {
  const ky_spec* spec = &program->outputs[output];
  if (ky_check_tensor(tensor, spec)) return KY_BAD_TENSOR;
  for (int32_t axis = 0; axis < spec->rank; axis++)
    if (ky_expect(tensor->shape[axis], shape[axis], spec->name, axis, NULL)) return KY_BAD_TENSOR;
  return KY_OK;
}

static int32_t ky_output_sizes(const ky_program* program, const int64_t* sizes, int32_t output, int64_t* shape) {
  program->output_dims(sizes, output, shape);
  for (int32_t axis = 0; axis < program->outputs[output].rank; axis++)
    if (shape[axis] < 0) return ky_fail(KY_BAD_TENSOR, "%s: the sizes of the inputs are inconsistent", program->outputs[output].name);
  return KY_OK;
}

int32_t ky_output_shape(int32_t function, const DLTensor* inputs, int32_t num_inputs, int32_t output, int64_t* shape) {
  int64_t sizes[KY_MAX_SYMBOLS + 1];
  const ky_program* program = ky_program_of(function);
  if (!program) return ky_fail(KY_BAD_CALL, "there is no function %d", function);
  if (!ky_is(output, program->num_outputs)) return ky_fail(KY_BAD_CALL, "%s: there is no output %d", program->name, output);
  if (program->outputs[output].rank && !shape) return ky_fail(KY_BAD_CALL, "%s: the shape to write is NULL", program->name);
  if (ky_check_count(program, "inputs", inputs, num_inputs, program->num_inputs)) return KY_BAD_CALL;
  for (int32_t i = 0; i < num_inputs; i++)
    if (ky_check_shape(&inputs[i], &program->inputs[i])) return KY_BAD_TENSOR;
  int32_t status = program->solve(inputs, sizes);
  return status ? status : ky_output_sizes(program, sizes, output, shape);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */
static int64_t ky_aligned(int64_t nbytes) { return (nbytes + KY_ALIGNMENT - 1) / KY_ALIGNMENT * KY_ALIGNMENT; }

static void* ky_allocate(int64_t nbytes) { return aligned_alloc(KY_ALIGNMENT, (size_t)ky_aligned(nbytes + 1)); }

/* At least that much memory in place of what was there, whose content is lost. */
static int32_t ky_grow(char** memory, int64_t* has, int64_t nbytes) {
  if (*memory && *has >= nbytes) return KY_OK;
  free(*memory);
  *memory = ky_allocate(nbytes);
  *has = *memory ? nbytes : 0;
  return *memory ? KY_OK : ky_fail(KY_NO_MEMORY, "out of memory: %lld bytes are needed", (long long)nbytes);
}

static int ky_overlap(const ky_register* a, const ky_register* b) { return a->first <= b->last && b->first <= a->last; }

/* The first offset at which a register does not meet those placed before (in order of offset) that live with it. */
static int64_t ky_first_gap(const ky_plan* plan, const int32_t* placed, int32_t count, int32_t next) {
  const ky_register* registers = plan->program->registers;
  int64_t size = ky_aligned(plan->nbytes[next]), offset = 0;
  for (int32_t i = 0; i < count; i++) {
    int64_t start = plan->offsets[placed[i]], end = start + ky_aligned(plan->nbytes[placed[i]]);
    if (!ky_overlap(&registers[next], &registers[placed[i]]) || end <= offset) continue;
    if (start >= offset + size) break;
    offset = end;
  }
  return offset;
}

/* First fit by order of size. `placed` and `done` have room for all registers. */
static int32_t ky_lay_out(ky_plan* plan, int32_t* placed, char* done) {
  const ky_register* registers = plan->program->registers;
  for (int32_t count = 0;; count++) {
    int32_t next = -1, place = count;
    for (int32_t r = 0; r < plan->program->num_registers; r++)
      if (!done[r] && registers[r].first <= registers[r].last && (next < 0 || plan->nbytes[r] > plan->nbytes[next])) next = r;
    if (next < 0) return KY_OK;
    int64_t offset = ky_first_gap(plan, placed, count, next), end = offset + ky_aligned(plan->nbytes[next]);
    if (end > KY_MOST_BYTES) return ky_fail(KY_NO_MEMORY, "out of memory");
    for (; place > 0 && plan->offsets[placed[place - 1]] > offset; place--) placed[place] = placed[place - 1];
    placed[place] = next;
    plan->offsets[next] = offset;
    done[next] = 1;
    if (end > plan->arena_nbytes) plan->arena_nbytes = end;
  }
}

/* --- plans -------------------------------------------------------------------------------------------------------- */
static void ky_free_plan(ky_plan* plan) {
  pthread_mutex_lock(&ky_binding);
  for (int32_t i = 0; plan->calls && i < plan->program->num_steps; i++)
    if (plan->calls[i]) ky_kernels[plan->program->steps[i].kernel].unbind(plan->calls[i]);
  pthread_mutex_unlock(&ky_binding);
  free(plan->sizes), free(plan->nbytes), free(plan->offsets), free(plan->calls), free(plan->args), free(plan->address);
  free(plan);
}

static int32_t ky_bind_steps(ky_model* model, ky_plan* plan) {
  for (int32_t i = 0; i < plan->program->num_steps; i++) {
    const ky_step* step = &plan->program->steps[i];
    int64_t own[KY_MAX_SYMBOLS + 1], workspace = 0;
    for (int32_t k = 0; k < step->num_sizes; k++) own[k] = plan->sizes[step->sizes[k]];
    const ky_kernel* kernel = &ky_kernels[step->kernel];
    int32_t threads = ky_threads_of(model, kernel);
    int32_t status = kernel->bind(model->shared[step->kernel], own, threads, &plan->calls[i], &workspace);
    if (status) return ky_fail(KY_STEP_FAILED, "%s cannot be bound: status %d", step->label, status);
    if (workspace > plan->workspace_nbytes) plan->workspace_nbytes = workspace;
  }
  return KY_OK;
}

static int32_t ky_fill_plan(ky_model* model, ky_plan* plan) {
  int32_t status = plan->program->measure(plan->sizes, plan->nbytes);
  if (status) return status;
  size_t registers = (size_t)plan->program->num_registers + 1;
  int32_t* placed = calloc(registers, sizeof *placed);
  char* done = calloc(registers, 1);
  status = placed && done ? ky_lay_out(plan, placed, done) : ky_fail(KY_NO_MEMORY, "out of memory");
  free(placed), free(done);
  if (status) return status;
  pthread_mutex_lock(&ky_binding);
  status = ky_bind_steps(model, plan);
  pthread_mutex_unlock(&ky_binding);
  return status;
}

static ky_plan* ky_new_plan(const ky_program* program, const int64_t* sizes) {
  ky_plan* plan = calloc(1, sizeof *plan);
  if (!plan) return NULL;
  size_t registers = (size_t)program->num_registers + 1;
  plan->program = program;
  plan->sizes = calloc((size_t)program->num_symbols + 1, sizeof *plan->sizes);
  plan->nbytes = calloc(registers, sizeof *plan->nbytes);
  plan->offsets = calloc(registers, sizeof *plan->offsets);
  plan->address = calloc(registers, sizeof *plan->address);
  plan->calls = calloc((size_t)program->num_steps + 1, sizeof *plan->calls);
  plan->args = calloc((size_t)program->max_args + 1, sizeof *plan->args);
  if (plan->sizes && plan->nbytes && plan->offsets && plan->address && plan->calls && plan->args) {
    memcpy(plan->sizes, sizes, (size_t)program->num_symbols * sizeof *sizes);
    return plan;
  }
  ky_free_plan(plan);
  return NULL;
}

/* The lane's plan of a program for these sizes, first of its plans from now on. */
static int32_t ky_find_plan(ky_model* model, ky_lane* lane, const ky_program* program, const int64_t* sizes) {
  int32_t count = 0;
  for (ky_plan **link = &lane->plans, *plan; (plan = *link); link = &plan->next) {
    if (plan->program == program && !memcmp(plan->sizes, sizes, (size_t)program->num_symbols * sizeof *sizes)) {
      *link = plan->next;
      plan->next = lane->plans;
      lane->plans = plan;
      return KY_OK;
    }
    if (++count == KY_PLANS) {
      *link = NULL;
      ky_free_plan(plan);
      break;
    }
  }
  ky_plan* made = ky_new_plan(program, sizes);
  if (!made) return ky_fail(KY_NO_MEMORY, "out of memory");
  int32_t status = ky_fill_plan(model, made);
  if (status) {
    ky_free_plan(made);
    return status;
  }
  made->next = lane->plans;
  lane->plans = made;
  return KY_OK;
}

/* --- running ------------------------------------------------------------------------------------------------------ */
static char* ky_data(const DLTensor* tensor) { return (char*)tensor->data + tensor->byte_offset; }

static int ky_usable(const char* data) { return (uintptr_t)data % KY_CALL_ALIGNMENT == 0; }

static int ky_meet(const char* a, int64_t a_nbytes, const char* b, int64_t b_nbytes) {
  return (uintptr_t)a < (uintptr_t)b + (uint64_t)b_nbytes && (uintptr_t)b < (uintptr_t)a + (uint64_t)a_nbytes;
}

/* May steps read an input where the caller has it? Not where it is also the memory of an output. */
static int ky_is_apart(const ky_plan* plan, const char* data, int64_t nbytes, const DLTensor* outputs) {
  for (int32_t i = 0; i < plan->program->num_outputs; i++)
    if (ky_meet(data, nbytes, ky_data(&outputs[i]), plan->nbytes[plan->program->results[i]])) return 0;
  return 1;
}

static void ky_place_input(ky_plan* plan, int32_t r, const DLTensor* inputs, const DLTensor* outputs) {
  char* data = ky_data(&inputs[plan->program->registers[r].number]);
  if (ky_usable(data) && ky_is_apart(plan, data, plan->nbytes[r], outputs)) plan->address[r] = data;
  else if (plan->nbytes[r]) memcpy(plan->address[r], data, (size_t)plan->nbytes[r]);
}

/* Where each register lies in this run: with the caller where it may, else in the arena. */
static void ky_place_registers(ky_model* model, ky_lane* lane, ky_plan* plan, const DLTensor* inputs, const DLTensor* outputs) {
  const ky_program* program = plan->program;
  for (int32_t r = 0; r < program->num_registers; r++) {
    const ky_register* reg = &program->registers[r];
    plan->address[r] = lane->arena + plan->offsets[r];
    if (reg->kind == 'c') plan->address[r] = model->constants[reg->number];
    if (reg->kind == 'i') ky_place_input(plan, r, inputs, outputs);
  }
  for (int32_t i = program->num_outputs - 1; i >= 0; i--) {
    int32_t root = program->registers[program->results[i]].root;
    if (program->registers[root].kind == 'b' && ky_usable(ky_data(&outputs[i]))) plan->address[root] = ky_data(&outputs[i]);
  }
  for (int32_t r = 0; r < program->num_registers; r++) plan->address[r] = plan->address[program->registers[r].root];
}

static int32_t ky_run_steps(ky_model* model, ky_lane* lane, ky_plan* plan) {
  for (int32_t i = 0; i < plan->program->num_steps; i++) {
    const ky_step* step = &plan->program->steps[i];
    for (int32_t k = 0; k < step->num_args; k++) plan->args[k] = plan->address[step->args[k]];
    const ky_kernel* kernel = &ky_kernels[step->kernel];
    int32_t status = kernel->run(plan->args, plan->calls[i], ky_threads_of(model, kernel), lane->workspace);
    if (status) return ky_fail(KY_STEP_FAILED, "%s failed: status %d", step->label, status);
  }
  return KY_OK;
}

static int32_t ky_run_on(ky_model* model, ky_lane* lane, const ky_program* program, const int64_t* sizes, const DLTensor* inputs, DLTensor* outputs) {
  int32_t status = ky_find_plan(model, lane, program, sizes);
  if (status) return status;
  ky_plan* plan = lane->plans;
  if (ky_grow(&lane->arena, &lane->arena_nbytes, plan->arena_nbytes)) return KY_NO_MEMORY;
  if (ky_grow(&lane->workspace, &lane->workspace_nbytes, plan->workspace_nbytes)) return KY_NO_MEMORY;
  ky_place_registers(model, lane, plan, inputs, outputs);
  if ((status = ky_run_steps(model, lane, plan))) return status;
  for (int32_t i = 0; i < program->num_outputs; i++) {
    char *from = plan->address[program->results[i]], *to = ky_data(&outputs[i]);
    int64_t nbytes = plan->nbytes[program->results[i]];
    if (from != to && nbytes) memmove(to, from, (size_t)nbytes);
  }
  return KY_OK;
}

static ky_lane* ky_take_lane(ky_model* model) {
  pthread_mutex_lock(&model->lock);
  ky_lane* lane = model->idle;
  if (lane) model->idle = lane->next;
  pthread_mutex_unlock(&model->lock);
  return lane ? lane : calloc(1, sizeof *lane);
}

static void ky_give_back(ky_model* model, ky_lane* lane) {
  pthread_mutex_lock(&model->lock);
  lane->next = model->idle;
  model->idle = lane;
  pthread_mutex_unlock(&model->lock);
}

static int32_t ky_check_call(const ky_program* program, const DLTensor* inputs, DLTensor* outputs, int64_t* sizes) {
  int64_t shape[KY_MAX_RANK + 1];
  for (int32_t i = 0; i < program->num_inputs; i++)
    if (ky_check_tensor(&inputs[i], &program->inputs[i])) return KY_BAD_TENSOR;
  int32_t status = program->solve(inputs, sizes);
  if (status) return status;
  for (int32_t i = 0; i < program->num_outputs; i++) {
    if (ky_output_sizes(program, sizes, i, shape)) return KY_BAD_TENSOR;
    if (ky_check_output(program, i, &outputs[i], shape)) return KY_BAD_TENSOR;
  }
  return KY_OK;
}

int32_t ky_run(ky_model* model, int32_t function, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs, int32_t num_outputs) {
  int64_t sizes[KY_MAX_SYMBOLS + 1] = {0};
  const ky_program* program = ky_program_of(function);
  if (!model) return ky_fail(KY_BAD_CALL, "there is no model");
  if (!program) return ky_fail(KY_BAD_CALL, "there is no function %d", function);
  if (program->needs_python) return ky_fail(KY_NEEDS_PYTHON, "%s: %s", program->name, program->needs_python);
  if (ky_check_count(program, "inputs", inputs, num_inputs, program->num_inputs)) return KY_BAD_CALL;
  if (ky_check_count(program, "outputs", outputs, num_outputs, program->num_outputs)) return KY_BAD_CALL;
  int32_t status = ky_check_call(program, inputs, outputs, sizes);
  if (status) return status;
  ky_lane* lane = ky_take_lane(model);
  if (!lane) return ky_fail(KY_NO_MEMORY, "out of memory");
  status = ky_run_on(model, lane, program, sizes, inputs, outputs);
  ky_give_back(model, lane);
  return status;
}

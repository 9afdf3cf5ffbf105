/* Models: constants where kernels can read them, and kernels prepared. */

static int32_t ky_processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static int32_t ky_place_constants(ky_model* model) {
  for (int32_t i = 0; i < KY_CONSTANTS; i++) {
    const unsigned char* bytes = ky_artifact + ky_constants[i].offset;
    model->constants[i] = (void*)bytes;
    if ((uintptr_t)bytes % KY_ALIGNMENT == 0) continue;
    model->constants[i] = model->owned[i] = ky_allocate(ky_constants[i].nbytes);
    if (!model->owned[i]) return ky_fail(KY_NO_MEMORY, "out of memory");
    memcpy(model->owned[i], bytes, (size_t)ky_constants[i].nbytes);
  }
  return KY_OK;
}

static int32_t ky_prepare_kernels(ky_model* model) {
  for (int32_t i = 0; i < KY_KERNELS; i++) {
    const ky_kernel* kernel = &ky_kernels[i];
    model->given[i] = calloc((size_t)kernel->num_constants + 1, sizeof(void*));
    if (!model->given[i]) return ky_fail(KY_NO_MEMORY, "out of memory");
    for (int32_t k = 0; k < kernel->num_constants; k++) model->given[i][k] = model->constants[kernel->constants[k]];
    int32_t status = kernel->prepare(model->given[i], ky_threads_of(model, kernel), &model->shared[i]);
    if (status == KY_WRONG_CPU)
      return ky_fail(KY_STEP_FAILED, "%s: this CPU lacks instructions that the code was compiled for", kernel->symbol);
    if (status) return ky_fail(KY_STEP_FAILED, "%s cannot be prepared: status %d", kernel->symbol, status);
  }
  return KY_OK;
}

static void ky_destroy_lane(ky_lane* lane) {
  for (ky_plan *plan = lane->plans, *next; plan; plan = next) {
    next = plan->next;
    ky_free_plan(plan);
  }
  free(lane->arena);
  free(lane->workspace);
  free(lane);
}

void ky_destroy(ky_model* model) {
  if (!model) return;
  for (ky_lane *lane = model->idle, *next; lane; lane = next) {
    next = lane->next;
    ky_destroy_lane(lane);
  }
  pthread_mutex_lock(&ky_binding);
  for (int32_t i = 0; i < KY_KERNELS; i++) {
    if (model->shared[i]) ky_kernels[i].release(model->shared[i]);
    free(model->given[i]);
  }
  pthread_mutex_unlock(&ky_binding);
  for (int32_t i = 0; i < KY_CONSTANTS; i++) free(model->owned[i]);
  pthread_mutex_destroy(&model->lock);
  free(model);
}

/* Why no function of the model can run without Python; NULL where one can. */
static const char* ky_all_need_python(void) {
  for (int32_t f = 0; f < KY_PROGRAMS; f++)
    if (!ky_programs[f].needs_python) return NULL;
  return KY_PROGRAMS ? ky_programs[0].needs_python : "the model has no functions";
}

ky_model* ky_create(int32_t threads) {
  const char* reason = ky_all_need_python();
  if (reason) {
    ky_fail(KY_NEEDS_PYTHON, "%s", reason);
    return NULL;
  }
  ky_model* model = calloc(1, sizeof *model);
  if (!model) {
    ky_fail(KY_NO_MEMORY, "out of memory");
    return NULL;
  }
  pthread_mutex_init(&model->lock, NULL);
  /* Parts without a processor of their own would wait for one. */
  model->threads = threads > 0 && threads < ky_processors() ? threads : ky_processors();
  int32_t status = ky_place_constants(model);
  pthread_mutex_lock(&ky_binding);
  if (!status) status = ky_prepare_kernels(model);
  pthread_mutex_unlock(&ky_binding);
  if (!status) return model;
  ky_destroy(model);
  return NULL;
}

/* What every region shares: a region's tables say which descriptors, primitives and tensors it has and what runs.
   Handles of oneDNN are void pointers; the prototypes above are those of its C API. */
#include <math.h> /* INFINITY, NAN: bounds of a clip */
typedef struct { int index; void* memory; } ky_argument; /* dnnl_exec_arg_t */
typedef struct { int index, place; } ky_operand;
typedef struct { int primitive, count; const ky_operand* operands; } ky_operation;
/* Where a tensor lies. kind: 'a' argument `number`, 'w' workspace, 'c' constant `number`, 'p' packed constant `number`. */
typedef struct { char kind; int number; int64_t offset; int descriptor; int64_t nbytes; } ky_place;
typedef struct { int primitive, source, descriptor; } ky_packing;

typedef struct ky_shared ky_shared;
typedef struct {
  int (*build)(ky_shared* r);
  int descriptors, attributes, primitives, places, packings, operations;
  int64_t planned;
  const ky_place* place;
  const ky_packing* packing;
  const ky_operation* operation;
  const char* executed; /* by primitive: whether it runs, or only says which layout it likes */
} ky_graph;

struct ky_shared {
  const ky_graph* graph;
  void *engine, **descriptor, **attribute, **primitive_descriptor, **primitive, **packed;
  const void* const* constants;
  int64_t scratch;
};

typedef struct {
  ky_shared* shared;
  void *stream, **memory, **scratch;
  ky_argument** arguments;
} ky_call;

#define TRY(call) do { int status_ = (call); if (status_) return status_; } while (0)
enum { OUT_OF_MEMORY = 1, OTHER_LAYOUT = 100, USER_SCRATCHPAD = 1, SCRATCHPAD_MD = 136, EXEC_ARG_MD = 255, SCRATCHPAD = 80 };

/* The OpenMP environment, where oneDNN uses one. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));
static int ky_enter(int threads) {
  if (!omp_get_max_threads || !omp_set_num_threads) return 0;
  int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  return before;
}
static void ky_leave(int before) { if (before) omp_set_num_threads(before); }

static int ky_layout(ky_shared* r, int number, int primitive, int what, int index) {
  const void* lent = dnnl_primitive_desc_query_md(r->primitive_descriptor[primitive], what, index);
  return lent ? dnnl_memory_desc_clone(&r->descriptor[number], (void*)lent) : OTHER_LAYOUT;
}

static void* ky_scratchpad(ky_shared* r, int primitive, int64_t* nbytes) {
  void* lent = (void*)dnnl_primitive_desc_query_md(r->primitive_descriptor[primitive], SCRATCHPAD_MD, 0);
  *nbytes = lent ? (int64_t)dnnl_memory_desc_get_size(lent) : 0;
  return *nbytes ? lent : NULL;
}

static int64_t ky_aligned(int64_t nbytes) { return (nbytes + 63) / 64 * 64; }

static char* ky_address(ky_shared* r, const ky_place* place, void** args, void* workspace) {
  char* base = place->kind == 'a' ? args[place->number]
             : place->kind == 'w' ? workspace
             : place->kind == 'c' ? (void*)r->constants[place->number] : r->packed[place->number];
  return base + place->offset;
}

static int ky_execute(void* primitive, void* stream, int count, ky_argument* arguments) {
  return dnnl_primitive_execute(primitive, stream, count, arguments);
}

/* The first packing of the same constant in the same layout: primitives may like the same one. */
static int ky_first_packing(ky_shared* r, int number) {
  const ky_packing *all = r->graph->packing, *packing = &all[number];
  int first = 0;
  while (all[first].source != packing->source ||
         !dnnl_memory_desc_equal(r->descriptor[all[first].descriptor], r->descriptor[packing->descriptor]))
    first++;
  return first;
}

/* A weight in the layout that its primitive likes. */
static int ky_pack(ky_shared* r, int number) {
  const ky_packing* packing = &r->graph->packing[number];
  int first = ky_first_packing(r, number);
  if (first < number) {
    r->packed[number] = r->packed[first];
    return 0;
  }
  const ky_place* source = &r->graph->place[packing->source];
  void *stream = NULL, *from = NULL, *to = NULL, *scratch = NULL, *room = NULL;
  int64_t nbytes = (int64_t)dnnl_memory_desc_get_size(r->descriptor[packing->descriptor]), extra;
  r->packed[number] = aligned_alloc(64, ky_aligned(nbytes + 1));
  if (!r->packed[number]) return OUT_OF_MEMORY;
  TRY(dnnl_memory_create(&from, r->descriptor[source->descriptor], r->engine, ky_address(r, source, NULL, NULL)));
  TRY(dnnl_memory_create(&to, r->descriptor[packing->descriptor], r->engine, r->packed[number]));
  ky_argument arguments[3] = {{1, from}, {17, to}, {SCRATCHPAD, NULL}};
  void* pad = ky_scratchpad(r, packing->primitive, &extra);
  if (pad) {
    room = aligned_alloc(64, ky_aligned(extra));
    if (!room) return OUT_OF_MEMORY;
    TRY(dnnl_memory_create(&scratch, pad, r->engine, room));
    arguments[2].memory = scratch;
  }
  TRY(dnnl_stream_create(&stream, r->engine, 1));
  TRY(ky_execute(r->primitive[packing->primitive], stream, pad ? 3 : 2, arguments));
  TRY(dnnl_stream_wait(stream));
  if (scratch) dnnl_memory_destroy(scratch);
  free(room);
  dnnl_memory_destroy(from);
  dnnl_memory_destroy(to);
  dnnl_stream_destroy(stream);
  return 0;
}

/* Whether tensors have the layouts that the primitives read and write. */
static int ky_check_layouts(ky_shared* r) {
  const ky_graph* g = r->graph;
  for (int i = 0; i < g->operations; i++) {
    const ky_operation* operation = &g->operation[i];
    for (int k = 0; k < operation->count; k++) {
      ky_operand operand = operation->operands[k];
      void* given = r->descriptor[g->place[operand.place].descriptor];
      void* pd = r->primitive_descriptor[operation->primitive];
      void* read = (void*)dnnl_primitive_desc_query_md(pd, EXEC_ARG_MD, operand.index);
      if (read && dnnl_memory_desc_get_size(read) && !dnnl_memory_desc_equal(read, given)) return OTHER_LAYOUT;
    }
  }
  return 0;
}

static void** ky_handles(int count) { return calloc((size_t)count + 1, sizeof(void*)); }

static int ky_fill(ky_shared* r) {
  const ky_graph* g = r->graph;
  TRY(dnnl_engine_create(&r->engine, 1, 0));
  TRY(g->build(r));
  for (int i = 0; i < g->primitives; i++) {
    if (!g->executed[i]) continue;
    int64_t nbytes;
    TRY(dnnl_primitive_create(&r->primitive[i], r->primitive_descriptor[i]));
    ky_scratchpad(r, i, &nbytes);
    if (nbytes > r->scratch) r->scratch = nbytes;
  }
  for (int i = 0; i < g->packings; i++) TRY(ky_pack(r, i));
  /* Memory was planned where the code was made: layouts chosen here must fit into it. */
  for (int i = 0; i < g->places; i++)
    if (g->place[i].nbytes >= 0 && (int64_t)dnnl_memory_desc_get_size(r->descriptor[g->place[i].descriptor]) > g->place[i].nbytes)
      return OTHER_LAYOUT;
  return ky_check_layouts(r);
}

static void ky_destroy(void** handles, int count, int (*destroy)(void*)) {
  for (int i = 0; handles && i < count; i++) if (handles[i]) destroy(handles[i]);
  free(handles);
}

static void ky_release(void* shared) {
  ky_shared* r = shared;
  if (!r) return;
  const ky_graph* g = r->graph;
  for (int i = 0; r->packed && i < g->packings; i++)
    if (r->packed[i] && ky_first_packing(r, i) == i) free(r->packed[i]);
  ky_destroy(r->primitive, g->primitives, dnnl_primitive_destroy);
  ky_destroy(r->primitive_descriptor, g->primitives, dnnl_primitive_desc_destroy);
  ky_destroy(r->attribute, g->attributes, dnnl_primitive_attr_destroy);
  ky_destroy(r->descriptor, g->descriptors, dnnl_memory_desc_destroy);
  free(r->packed);
  if (r->engine) dnnl_engine_destroy(r->engine);
  free(r);
}

static int ky_prepare(const ky_graph* g, const void* const* constants, int threads, void** shared) {
  ky_shared* r = *shared = calloc(1, sizeof *r);
  if (!r) return OUT_OF_MEMORY;
  r->graph = g;
  r->constants = constants;
  r->descriptor = ky_handles(g->descriptors);
  r->attribute = ky_handles(g->attributes);
  r->primitive_descriptor = ky_handles(g->primitives);
  r->primitive = ky_handles(g->primitives);
  r->packed = ky_handles(g->packings);
  int status = OUT_OF_MEMORY;
  if (r->descriptor && r->attribute && r->primitive_descriptor && r->primitive && r->packed) {
    int before = ky_enter(threads);
    status = ky_fill(r);
    ky_leave(before);
  }
  if (status) {
    ky_release(r);
    *shared = NULL;
  }
  return status;
}

static void ky_unbind(void* call) {
  ky_call* c = call;
  if (!c) return;
  const ky_graph* g = c->shared->graph;
  ky_destroy(c->memory, g->places, dnnl_memory_destroy);
  ky_destroy(c->scratch, g->operations, dnnl_memory_destroy);
  for (int i = 0; c->arguments && i < g->operations; i++) free(c->arguments[i]);
  free(c->arguments);
  if (c->stream) dnnl_stream_destroy(c->stream);
  free(c);
}

static int ky_make_call(ky_shared* r, ky_call* c) {
  const ky_graph* g = r->graph;
  TRY(dnnl_stream_create(&c->stream, r->engine, 1));
  for (int i = 0; i < g->places; i++) {
    char is_fixed = g->place[i].kind == 'c' || g->place[i].kind == 'p';
    char* address = is_fixed ? ky_address(r, &g->place[i], NULL, NULL) : NULL;
    TRY(dnnl_memory_create(&c->memory[i], r->descriptor[g->place[i].descriptor], r->engine, address));
  }
  for (int i = 0; i < g->operations; i++) {
    const ky_operation* operation = &g->operation[i];
    ky_argument* arguments = c->arguments[i] = calloc((size_t)operation->count + 1, sizeof(ky_argument));
    if (!arguments) return OUT_OF_MEMORY;
    int64_t nbytes;
    void* pad = ky_scratchpad(r, operation->primitive, &nbytes);
    if (pad) TRY(dnnl_memory_create(&c->scratch[i], pad, r->engine, NULL));
    for (int k = 0; k < operation->count; k++)
      arguments[k] = (ky_argument){operation->operands[k].index, c->memory[operation->operands[k].place]};
    arguments[operation->count] = (ky_argument){SCRATCHPAD, c->scratch[i]};
  }
  return 0;
}

static int ky_bind(void* shared, void** call, int64_t* workspace_nbytes) {
  ky_shared* r = shared;
  ky_call* c = *call = calloc(1, sizeof *c);
  if (!c) return OUT_OF_MEMORY;
  c->shared = r;
  c->memory = ky_handles(r->graph->places);
  c->scratch = ky_handles(r->graph->operations);
  c->arguments = (ky_argument**)ky_handles(r->graph->operations);
  *workspace_nbytes = r->graph->planned + ky_aligned(r->scratch);
  int status = c->memory && c->scratch && c->arguments ? ky_make_call(r, c) : OUT_OF_MEMORY;
  if (status) {
    ky_unbind(c);
    *call = NULL;
  }
  return status;
}

static int ky_run_all(ky_call* c, void** args, char* workspace) {
  const ky_graph* g = c->shared->graph;
  for (int i = 0; i < g->places; i++)
    if (g->place[i].kind == 'a' || g->place[i].kind == 'w')
      TRY(dnnl_memory_set_data_handle(c->memory[i], ky_address(c->shared, &g->place[i], args, workspace)));
  for (int i = 0; i < g->operations; i++) {
    const ky_operation* operation = &g->operation[i];
    if (c->scratch[i]) TRY(dnnl_memory_set_data_handle(c->scratch[i], workspace + g->planned));
    int count = operation->count + (c->scratch[i] ? 1 : 0);
    TRY(ky_execute(c->shared->primitive[operation->primitive], c->stream, count, c->arguments[i]));
  }
  return 0;
}

static int ky_run(void** args, void* call, int threads, void* workspace) {
  int before = ky_enter(threads);
  int status = ky_run_all(call, args, workspace);
  ky_leave(before);
  return status;
}

#define KY_FUNCTION(name, graph)                                                                                   \
  int32_t name##_prepare(const void* const* constants, int32_t threads, void** shared) {                          \
    return ky_prepare(&graph, constants, threads, shared);                                                         \
  }                                                                                                                \
  int32_t name##_bind(void* shared, const int64_t* sizes, int32_t threads, void** call, int64_t* nbytes) {         \
    (void)sizes; (void)threads;                                                                                    \
    return ky_bind(shared, call, nbytes);                                                                          \
  }                                                                                                                \
  int32_t name##_run(void** args, void* call, int32_t threads, void* workspace) {                                  \
    return ky_run(args, call, threads, workspace);                                                                 \
  }                                                                                                                \
  void name##_unbind(void* call) { ky_unbind(call); }                                                              \
  void name##_release(void* shared) { ky_release(shared); }

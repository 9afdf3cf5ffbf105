// A libcuda.so.1 for tests: the device's memory is the host's, kernels are the emulator's, and all that a program may not count
// on is as it can be at worst. Streams run as late as possible: only when somebody waits for them, or for an event, or when a
// stream that is waited for waits for an event of theirs. Page-locked memory is read when a copy runs, memory that is given
// back is overwritten in the order of its stream and never handed out again unless a test asks for it, and what may not be
// captured ends the capture. There are two devices; what lies on one is not for the other.
// Source: CUDA Driver API documentation; CUDA C++ Programming Guide, "CUDA Graphs".
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {
enum Result {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
};
typedef unsigned long long Address;

// --- what there is ----------------------------------------------------------------------------------------------------
struct Block { size_t nbytes; Address context; bool is_host, is_freed; };  // the context: of its device
struct Stream {
  Address context = 0;
  std::vector<std::function<void()>> work;  // in order
  size_t done = 0;                          // of it
  bool is_capturing = false, is_invalid = false;
};
struct Event { Address context; Stream* stream = nullptr; size_t position = 0; };
struct Graph { std::vector<std::function<void()>> work; };
struct Slot { long long value, nbytes; };                                            // as the emulator's launches take
struct Start { unsigned grid[3], block[3], shared_nbytes, records_tensors, order; };  // them
typedef const char* (*Emulated)(const Start*, const Slot*);
struct alignas(64) TensorMap {  // as the emulator has them
  Address address; long long nbytes;
  unsigned rank, element_nbytes;
  uint64_t sizes[5], strides[5];
  unsigned box[5], is_swizzled;
};
// maps: a bit for each parameter that is one.
struct Function { std::string name; Emulated run; int parameters; unsigned maps; Address context; unsigned most_shared = 48 << 10; };
struct Module { void* library; Address context; };

const int DEVICES = 2;
const Address CONTEXT = 0x1000, POOL = 0x2000;  // of the first device; the others' follow
const unsigned MOST_SHARED = 227 << 10, MOST_THREADS = 1024, MOST_BLOCKS_ACROSS = 65535;
const int POISON = 0xC3;

std::recursive_mutex lock;
std::map<Address, Block> blocks;
std::vector<std::unique_ptr<Stream>> streams;
Stream legacy;  // the handles 0 to 2
bool is_there = false, was_opened = false, reuses_memory = false, drops_work = false;
std::map<std::string, int> counts;  // of calls, by function
std::map<std::pair<void*, size_t>, std::vector<Address>> idle;  // given back on a stream, of so many bytes
std::string complaint;  // the first; all calls fail after it, as on a device after a kernel's failure
thread_local Address current = 0;
thread_local Stream* captured_here = nullptr;

#define LOCKED                                     \
  std::lock_guard<std::recursive_mutex> held(lock); \
  ++counts[__func__]

void complain(const std::string& what) {
  if (complaint.empty()) complaint = what;
}
Result state() { return complaint.empty() ? SUCCESS : LAUNCH_FAILED; }
Stream& stream_of(void* handle) { return (uintptr_t)handle <= 2 ? legacy : *(Stream*)handle; }

void run_until(Stream& stream, size_t position) {
  while (stream.done < position) std::exchange(stream.work[stream.done++], nullptr)();
}
void run_all() {
  run_until(legacy, legacy.work.size());
  for (auto& stream : streams) run_until(*stream, stream->work.size());
}
Result put(Stream& stream, std::function<void()> work) {
  if (stream.is_invalid) return CAPTURE_INVALIDATED;
  if (!drops_work || stream.is_capturing) stream.work.push_back(std::move(work));
  return state();
}
Result refuse(Stream& stream) {
  stream.is_invalid = true;
  return CAPTURE_UNSUPPORTED;
}
// What a thread that captures may not ask for: waiting, and memory that is not allocated in the order of a stream.
Result check_thread() { return captured_here ? refuse(*captured_here) : state(); }

// --- memory -----------------------------------------------------------------------------------------------------------
Block* block_at(Address address, Address* start = nullptr) {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  auto& [first, block] = *--after;
  if (start) *start = first;
  return address < first + block.nbytes ? &block : nullptr;
}
bool is_usable(Address address, size_t nbytes) {
  Address start;
  const Block* block = block_at(address, &start);
  return block && !block->is_freed && address + nbytes <= start + block->nbytes;
}
Result allocate(Address* address, size_t nbytes, bool is_host) {
  void* memory = nullptr;
  if (!nbytes) return INVALID_VALUE;
  if (posix_memalign(&memory, 512, nbytes)) return OUT_OF_MEMORY;
  memset(memory, POISON, nbytes);
  *address = (Address)memory;
  blocks[*address] = {nbytes, current, is_host, false};
  return SUCCESS;
}
void release(Address address) {
  auto found = blocks.find(address);
  if (found == blocks.end() || found->second.is_freed) return complain("memory is given back that is not allocated");
  memset((void*)address, POISON, found->second.nbytes);
  found->second.is_freed = true;
}
void copy(Address to, Address from, size_t nbytes) {
  if (is_usable(to, nbytes) && is_usable(from, nbytes)) memmove((void*)to, (void*)from, nbytes);
  else complain("a copy from or to memory that is not allocated when it runs");
}

// --- kernels ----------------------------------------------------------------------------------------------------------
void launch(const Function& function, const Start& how, std::vector<Slot> slots, std::vector<TensorMap> maps) {
  for (size_t n = 0, map = 0; n < slots.size(); ++n) {
    Address start;
    const bool is_map = function.maps >> n & 1;
    const Address address = is_map ? maps[map].address : slots[n].value;
    const Block* block = block_at(address, &start);
    if (!block && is_map) return complain(function.name + ": a tensor map of memory that is not allocated");
    if (!block) continue;  // a number
    if (block->is_freed) return complain(function.name + ": an argument lies in memory that was given back before");
    if (block->context != function.context) return complain(function.name + ": an argument lies on another device");
    const long long nbytes = start + block->nbytes - address;
    if (!is_map) slots[n].nbytes = nbytes;
    else maps[map].nbytes = nbytes, slots[n].value = (long long)&maps[map++];
  }
  if (const char* message = function.run(&how, slots.data())) complain(function.name + ": " + message);
}
size_t size_of_image(const unsigned char* image) {  // the section headers are what an ELF file ends with
  Elf64_Ehdr head;
  memcpy(&head, image, sizeof head);
  return head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
}
}  // namespace

extern "C" {
// --- for tests --------------------------------------------------------------------------------------------------------
// There are devices from now on, or none; nothing is under way, and nothing has gone wrong.
void late_driver_reset(int has_device) {
  LOCKED;
  reuses_memory = drops_work = false;
  idle.clear();
  is_there = has_device;
  run_all();
  complaint.clear();
}
const char* late_driver_complaint() { return complaint.c_str(); }
int late_driver_was_opened() { return was_opened; }
// Pools hand out what was given back on the same stream, the last first.
void late_driver_reuse_memory() { reuses_memory = true; }
// Nothing that is put on a stream is done: what is left is the host's work.
void late_driver_drop_work() { drops_work = true; }
int late_driver_count(const char* function) { return counts[function]; }
int late_driver_captures() {
  LOCKED;
  int count = 0;
  for (auto& stream : streams) count += stream->is_capturing;
  return count;
}

// --- devices and contexts ---------------------------------------------------------------------------------------------
Result cuInit(unsigned) { return was_opened = true, is_there ? SUCCESS : NO_DEVICE; }
Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
Result cuDeviceGetCount(int* count) { return *count = is_there * DEVICES, SUCCESS; }
Result cuDeviceGet(int* device, int number) {
  *device = number;
  return number >= 0 && number < DEVICES && is_there ? SUCCESS : INVALID_DEVICE;
}
Result cuDeviceGetAttribute(int* value, int attribute, int) {
  const std::map<int, int> known = {{16, 132}, {75, 9}, {76, 0}, {115, 1}};  // multiprocessors, capability, pools
  auto found = known.find(attribute);
  if (found == known.end()) return INVALID_VALUE;
  return *value = found->second, SUCCESS;
}
Result cuDevicePrimaryCtxRetain(Address* context, int device) { return *context = CONTEXT + device, SUCCESS; }
Result cuCtxSetCurrent(Address context) {
  LOCKED;
  return current = context, SUCCESS;
}
Result cuCtxGetCurrent(Address* context) { return *context = current, SUCCESS; }
Result cuCtxSynchronize() {
  LOCKED;
  bool is_captured = false;
  for (auto& stream : streams)  // of any thread
    if (stream->is_capturing) stream->is_invalid = is_captured = true;
  if (is_captured) return CAPTURE_UNSUPPORTED;
  run_all();
  return state();
}

// --- memory -----------------------------------------------------------------------------------------------------------
Result cuMemPoolCreate(Address* pool, const int* properties) {
  *pool = POOL + properties[3];
  const bool is_of_device = properties[2] == 1 && CONTEXT + properties[3] == current;
  return properties[0] == 1 && is_of_device ? SUCCESS : INVALID_VALUE;  // pinned
}
Result cuMemPoolSetAttribute(Address, int attribute, void*) { return attribute == 4 ? SUCCESS : INVALID_VALUE; }
Result cuMemAlloc_v2(Address* address, size_t nbytes) {
  LOCKED;
  const Result allowed = check_thread();
  return allowed ? allowed : allocate(address, nbytes, false);
}
Result cuMemAllocHost_v2(Address* address, size_t nbytes) {
  LOCKED;
  const Result allowed = check_thread();
  return allowed ? allowed : allocate(address, nbytes, true);
}
Result cuMemAllocFromPoolAsync(Address* address, size_t nbytes, Address pool, void* stream) {
  LOCKED;
  if (stream_of(stream).is_capturing) return refuse(stream_of(stream));
  if (!current) return INVALID_CONTEXT;
  if (pool - POOL != current - CONTEXT) return INVALID_VALUE;
  if (state()) return state();
  auto& found = idle[{stream, nbytes}];
  if (found.empty()) return allocate(address, nbytes, false);
  *address = found.back();
  found.pop_back();
  const Address again = *address;
  return put(stream_of(stream), [=] { blocks[again].is_freed = false; });
}
Result cuMemFree_v2(Address address) {
  LOCKED;
  const Result allowed = check_thread();
  if (allowed) return allowed;
  run_all();
  return release(address), state();
}
Result cuMemFreeAsync(Address address, void* stream) {
  LOCKED;
  if (reuses_memory && blocks.count(address)) idle[{stream, blocks[address].nbytes}].push_back(address);
  return put(stream_of(stream), [=] { release(address); });
}
Result cuMemcpyHtoDAsync_v2(Address to, Address from, size_t nbytes, void* handle) {
  LOCKED;
  Stream& stream = stream_of(handle);
  const Block* block = block_at(from);
  if (block && block->is_host) return put(stream, [=] { copy(to, from, nbytes); });
  if (stream.is_capturing) return refuse(stream);
  std::vector<char> pageable((char*)from, (char*)from + nbytes);  // it may change now
  return put(stream, [=] {
    if (is_usable(to, nbytes)) memcpy((void*)to, pageable.data(), nbytes);
    else complain("a copy to memory that is not allocated when it runs");
  });
}
Result cuMemcpyDtoHAsync_v2(Address to, Address from, size_t nbytes, void* handle) {
  LOCKED;
  Stream& stream = stream_of(handle);
  if (stream.is_capturing) return refuse(stream);
  return put(stream, [=] {
    if (is_usable(from, nbytes)) memcpy((void*)to, (void*)from, nbytes);
    else complain("a copy from memory that is not allocated when it runs");
  });
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t nbytes, void* stream) {
  LOCKED;
  return put(stream_of(stream), [=] { copy(to, from, nbytes); });
}

// --- streams and events -----------------------------------------------------------------------------------------------
Result cuStreamCreate(void** stream, unsigned) {
  LOCKED;
  if (!current) return INVALID_CONTEXT;
  streams.push_back(std::make_unique<Stream>());
  streams.back()->context = current;
  return *stream = streams.back().get(), SUCCESS;
}
Result cuStreamSynchronize(void* handle) {
  LOCKED;
  Stream& stream = stream_of(handle);
  if (stream.is_capturing) return refuse(stream);
  run_until(stream, stream.work.size());
  return state();
}
Result cuStreamIsCapturing(void* handle, int* status) {
  LOCKED;
  *status = stream_of(handle).is_capturing;
  return state();
}
// Events stay when they are destroyed: waits for them may be under way.
Result cuEventCreate(void** event, unsigned) {
  LOCKED;
  return current ? (*event = new Event{current}, SUCCESS) : INVALID_CONTEXT;
}
Result cuEventDestroy_v2(void*) { return SUCCESS; }
Result cuEventElapsedTime_v2(float* milliseconds, void*, void*) { return *milliseconds = 1, SUCCESS; }
Result cuEventRecord(void* event, void* handle) {
  LOCKED;
  Stream& stream = stream_of(handle);
  const Address context = ((Event*)event)->context;
  if (&stream != &legacy && stream.context != context) return INVALID_HANDLE;
  if (stream.is_capturing) return refuse(stream);
  *(Event*)event = {context, &stream, stream.work.size()};
  return state();
}
Result cuEventSynchronize(void* event) {
  LOCKED;
  const Result allowed = check_thread();
  const Event& it = *(Event*)event;
  if (!allowed && it.stream) run_until(*it.stream, it.position);
  return allowed ? allowed : state();
}
Result cuStreamWaitEvent(void* handle, void* event, unsigned) {
  LOCKED;
  Stream& stream = stream_of(handle);
  if (stream.is_capturing) return refuse(stream);
  const Event it = *(Event*)event;
  return it.stream ? put(stream, [=] { run_until(*it.stream, it.position); }) : state();
}

// --- graphs -----------------------------------------------------------------------------------------------------------
Result cuStreamBeginCapture_v2(void* handle, int mode) {
  LOCKED;
  Stream& stream = stream_of(handle);
  if (&stream == &legacy || stream.is_capturing || captured_here) return CAPTURE_UNSUPPORTED;
  if (mode != 1) return INVALID_VALUE;  // of this thread alone
  run_until(stream, stream.work.size());
  stream.work.clear(), stream.done = 0;
  stream.is_capturing = true;
  captured_here = &stream;
  return state();
}
Result cuStreamEndCapture(void* handle, void** graph) {
  LOCKED;
  Stream& stream = stream_of(handle);
  *graph = nullptr;
  if (!stream.is_capturing || captured_here != &stream) return ILLEGAL_STATE;
  const bool is_invalid = stream.is_invalid;
  if (!is_invalid) *graph = new Graph{stream.work};
  stream.work.clear();
  stream.is_capturing = stream.is_invalid = false;
  captured_here = nullptr;
  return is_invalid ? CAPTURE_INVALIDATED : state();
}
Result cuGraphInstantiateWithFlags(void** executable, void* graph, Address) {
  return *executable = new Graph(*(Graph*)graph), SUCCESS;
}
Result cuGraphDestroy(void* graph) { return delete (Graph*)graph, SUCCESS; }
Result cuGraphExecDestroy(void*) { return SUCCESS; }  // launches of it may be under way
Result cuGraphLaunch(void* executable, void* stream) {
  LOCKED;
  const Graph* graph = (Graph*)executable;
  return put(stream_of(stream), [=] {
    for (auto& step : graph->work) step();
  });
}

// --- modules and launches ---------------------------------------------------------------------------------------------
Result cuModuleLoadData(void** module, const unsigned char* image) {
  if (memcmp(image, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  char path[] = "/tmp/late-driver-XXXXXX";
  const int file = mkstemp(path);
  const size_t nbytes = size_of_image(image);
  const bool is_written = file >= 0 && write(file, image, nbytes) == (ssize_t)nbytes;
  void* library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (file >= 0) close(file), unlink(path);
  *module = library ? new Module{library, current} : nullptr;
  return library ? SUCCESS : INVALID_IMAGE;
}
Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  LOCKED;
  const Emulated run = (Emulated)dlsym(module->library, ("emulate_" + std::string(name)).c_str());
  const int* parameters = (const int*)dlsym(module->library, ("parameters_of_" + std::string(name)).c_str());
  const unsigned* maps = (const unsigned*)dlsym(module->library, ("maps_of_" + std::string(name)).c_str());
  if (!run || !parameters || !maps) return NOT_FOUND;
  return *function = new Function{name, run, *parameters, *maps, module->context}, SUCCESS;
}
Result cuFuncSetAttribute(Function* function, int attribute, int value) {
  if (attribute != 8 || value < 0 || (unsigned)value > MOST_SHARED) return INVALID_VALUE;
  return function->most_shared = value, SUCCESS;
}
Result cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void* stream, void** parameters, void**) {
  LOCKED;
  if (!current || function->context != current) return INVALID_CONTEXT;
  if (stream_of(stream).context != current && &stream_of(stream) != &legacy) return INVALID_HANDLE;
  const size_t threads = (size_t)threads_x * threads_y * threads_z;
  if (!x || !y || !z || x > INT32_MAX || y > MOST_BLOCKS_ACROSS || z > MOST_BLOCKS_ACROSS) return INVALID_VALUE;
  if (!threads || threads > MOST_THREADS || threads_z > 64 || shared > function->most_shared) return INVALID_VALUE;
  std::vector<Slot> slots(function->parameters);
  std::vector<TensorMap> maps;
  for (int n = 0; n < function->parameters; ++n)  // they may change now
    if (function->maps >> n & 1) maps.push_back(*(const TensorMap*)parameters[n]);
    else slots[n] = {*(long long*)parameters[n], 0};
  const Start how = {{x, y, z}, {threads_x, threads_y, threads_z}, shared, 0, 0};
  return put(stream_of(stream), [=] { launch(*function, how, slots, maps); });
}
// Of float16 and bfloat16, in lines of up to 128 bytes that are swizzled.
Result cuTensorMapEncodeTiled(TensorMap* map, int type, unsigned rank, Address address, const uint64_t* sizes,
                              const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave, int swizzle,
                              int, int) {
  LOCKED;
  const unsigned nbytes = 2;
  if ((type != 6 && type != 9) || interleave != 0 || swizzle != 3) return INVALID_VALUE;
  if ((Address)map % 64 || address % 16 || rank < 1 || rank > 5 || box[0] * nbytes > 128 || box[0] * nbytes % 16) return INVALID_VALUE;
  *map = {address, 0, rank, nbytes, {}, {nbytes}, {}, 1};
  for (unsigned axis = 0; axis < rank; ++axis) {
    const uint64_t stride = axis ? strides[axis - 1] : 16;
    if (!sizes[axis] || sizes[axis] > 1ull << 32 || !box[axis] || box[axis] > 256 || steps[axis] != 1) return INVALID_VALUE;
    if (stride % 16 || stride >= 1ull << 40) return INVALID_VALUE;
    map->sizes[axis] = sizes[axis], map->box[axis] = box[axis];
    if (axis) map->strides[axis] = stride;
  }
  return state();
}

// --- entry points -----------------------------------------------------------------------------------------------------
Result cuGetErrorName(int, const char** name) { return *name = "of the late driver", SUCCESS; }
Result cuGetErrorString(int, const char** text) { return *text = complaint.c_str(), SUCCESS; }
Result cuGetProcAddress_v2(const char* name, void** function, int, Address, int* status) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = nullptr;
  for (const char* suffix : {"_v2", "", "WithFlags"})
    if (!*function) *function = dlsym(self, (std::string(name) + suffix).c_str());
  if (status) *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
Result cuGetProcAddress(const char* name, void** function, int version, Address flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
}

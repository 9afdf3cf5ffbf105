// CUDA on the CPU: the text of generated kernels, compiled by g++. Blocks run one after another; the threads of a block are
// fibers, which run in turn from one barrier to the next. What a GPU would answer with a wrong result is an error here:
// accesses outside a tensor or a shared array, a barrier that not all threads reach, reading shared memory that nobody
// wrote, threads that touch the same element of it between two barriers, one of them writing, and touching what an
// asynchronous copy brings before it is waited for; where that is asked for, also threads that so touch an element of a tensor.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define KERNELYARD_EMULATION
#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define EXPORTED extern "C" __attribute__((visibility("default")))
#define GLOBAL(T) emulation::Global<T>
#define SHARED(T, name, count) static emulation::Shared<T, count> name

struct uint3 { unsigned x, y, z; };
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
template <class To, class From> static To emulation_bits(From x) { To to; memcpy(&to, &x, sizeof to); return to; }
static inline float __int_as_float(int x) { return emulation_bits<float>(x); }
static inline int __float_as_int(float x) { return emulation_bits<int>(x); }
static inline long long __double_as_longlong(double x) { return emulation_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulation_bits<double>(x); }
template <class T, int N> struct Pack;

namespace emulation {

// --- fibers -----------------------------------------------------------------------------------------------------------
#if defined(__x86_64__)
struct Context { void* stack; };
extern "C" void kernelyard_switch(void** save, void* load);
asm(".text\n.local kernelyard_switch\nkernelyard_switch:\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
static inline void change(Context& from, Context& to) { kernelyard_switch(&from.stack, to.stack); }
static void prepare(Context& context, char* stack, size_t size, void (*start)()) {
  void** top = (void**)(((size_t)stack + size) & ~(size_t)15);
  *--top = nullptr;
  *--top = (void*)start;
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context.stack = top;
}
#else
}  // namespace emulation
#include <ucontext.h>
namespace emulation {
struct Context { ucontext_t at; };
static inline void change(Context& from, Context& to) { swapcontext(&from.at, &to.at); }
static void prepare(Context& context, char* stack, size_t size, void (*start)()) {
  getcontext(&context.at);
  context.at.uc_stack.ss_sp = stack;
  context.at.uc_stack.ss_size = size;
  context.at.uc_link = nullptr;
  makecontext(&context.at, start, 0);
}
#endif

// --- a block of threads -----------------------------------------------------------------------------------------------
enum State { READY, AT_BARRIER, IN_WARP, WAITING, DONE };  // WAITING: at an mbarrier, or for wgmma
struct Thread {
  Context context; State state; uint3 index; unsigned lane_mask; unsigned long long slot;
  unsigned syncs;   // of its whole warp so far, by __syncwarp
  unsigned fences;  // so far, between what it writes to shared memory and what copies and wgmma read there
};
static const unsigned MOST_THREADS = 1024, WARP_THREADS = 32;
static const size_t STACK = 128 << 10;
inline Thread threads[MOST_THREADS + 1];  // and one that stands for bulk copies
inline char* stacks;
inline Thread* current;
inline Context scheduler;
inline uint3 grid, block, block_index;
inline unsigned count;  // of threads in a block
inline unsigned long long epoch = 1;  // barriers so far, in all blocks: what happened in another epoch is in order
inline bool is_last_first;  // the order of blocks, and of copies
inline unsigned long long block_epoch;  // the epoch in which the block began: shared memory of before is not its own
inline void (*body)(void*);
inline void* arguments;
inline char message[512];
// What asynchronous work of sm_90 adds, where a kernel has any: whether something happened that threads wait for, what is
// wrong at a block's end, and what a write of shared memory would disturb.
struct Extension { void (*start)(); bool (*release)(); void (*check_end)(); void (*check_write)(unsigned place, unsigned nbytes); };
inline Extension extension;

static void leave() { change(current->context, scheduler); }
[[noreturn]] __attribute__((noinline, cold)) static void fail(const char* what, long long index, long long size) {
  snprintf(message, sizeof message, "%s (index %lld of %lld) by thread (%u, %u, %u) of block (%u, %u, %u)", what, index, size,
           current->index.x, current->index.y, current->index.z, block_index.x, block_index.y, block_index.z);
  for (;;) leave();
}
static void start() {
  body(arguments);
  current->state = DONE;
  for (;;) leave();
}

}  // namespace emulation
#include "emulated_lists.h"
#include "emulated_clocks.h"
#include "emulated_shared.h"
#include "emulated_tensors.h"
namespace emulation {

// --- static shared memory ----------------------------------------------------------------------------------------------
template <class T> struct Cell {
  T value;
  unsigned long long written, read;  // the epochs
  Thread *writer, *reader;           // reader: the last one
  bool read_alone, read_in_warp;     // by one thread; by those of one warp
  unsigned written_at, read_at;      // after so many syncs of the warp
};
template <class T> struct Element {  // of a shared array, about to be read or written
  Cell<T>& cell;
  long long index, size;
  operator T() const {
    touch(index * sizeof(T), sizeof(T));
    if (cell.written < block_epoch) fail("shared memory is read that nobody wrote", index, size);
    if (cell.written == epoch && cell.writer != current && !met_since(cell.writer, cell.written_at))
      fail("shared memory is read before a barrier after another thread wrote it", index, size);
    const bool is_first = cell.read != epoch;
    cell.read_alone = is_first || (cell.read_alone && cell.reader == current);
    cell.read_in_warp = is_first || (cell.read_in_warp && warp_of(cell.reader) == warp_of(current));
    cell.read = epoch, cell.reader = current, cell.read_at = current->syncs;
    return cell.value;
  }
  const Element& operator=(T value) const {
    touch(index * sizeof(T), sizeof(T));
    if (cell.written == epoch && cell.writer != current && !met_since(cell.writer, cell.written_at))
      fail("two threads write one element of shared memory", index, size);
    if (cell.read == epoch && !(cell.read_alone && cell.reader == current) &&
        !(cell.read_in_warp && met_since(cell.reader, cell.read_at)))
      fail("shared memory is written before a barrier after another thread read it", index, size);
    cell.value = value, cell.written = epoch, cell.writer = current, cell.written_at = current->syncs;
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = (T)other; }
};

template <class T, int N> struct Shared {
  Cell<T> cells[N];
  Element<T> operator[](long long i) {
    if (i < 0 || i >= N) fail("an access outside a shared array", i, N);
    return {cells[i], i, N};
  }
};

// --- launches ---------------------------------------------------------------------------------------------------------
template <int... I> struct Numbers {};
template <int N, int... I> struct Upto : Upto<N - 1, N - 1, I...> {};
template <int... I> struct Upto<0, I...> { typedef Numbers<I...> type; };
template <class... A> struct Call { void (*kernel)(A...); const Given* given; };
template <class... A, int... I> static void call(Call<A...>* it, Numbers<I...>) {
  it->kernel(Argument<A>::of(it->given[I])...);
}
template <class... A> static void call_it(void* it) { call((Call<A...>*)it, typename Upto<sizeof...(A)>::type()); }

struct Start { unsigned grid[3], block[3], shared_nbytes, records_tensors, order; };
// Runs the blocks of `body`; null, or what went wrong.
const char* run(const Start& how, Given* given, const Kind* kinds, int arguments_count);
// Runs a kernel; null, or what went wrong. names: of its parameters, as far as they are known.
template <int N, class... A>
static const char* launch(void (*kernel)(A...), const Start* how, const Slot* slots, const char* const (&names)[N]) {
  const Kind kinds[] = {Argument<A>::KIND..., {}};
  const int many = sizeof...(A);
  Given given[many + 1];
  for (int n = 0; n < many; ++n) given[n] = {slots[n], n < N ? names[n] : "", nullptr, {}};
  Call<A...> it = {kernel, given};
  body = call_it<A...>, arguments = &it;
  return run(*how, given, kinds, many);
}
}  // namespace emulation

// --- what kernels call ------------------------------------------------------------------------------------------------
#define threadIdx (emulation::current->index)
#define blockIdx emulation::block_index
#define blockDim emulation::block
#define gridDim emulation::grid
__attribute__((noinline)) static void __syncthreads() {
  emulation::current->state = emulation::AT_BARRIER;
  emulation::leave();
}
__attribute__((noinline)) static void emulation_meet(unsigned mask) {
  const unsigned first = (emulation::current - emulation::threads) & ~31u, left = emulation::count - first;
  emulation::current->lane_mask = left < 32 ? mask & ((1u << left) - 1) : mask;
  emulation::current->state = emulation::IN_WARP;
  emulation::leave();
}
// Orders accesses of shared memory, which the other collectives do not.
static void __syncwarp(unsigned mask = 0xffffffffu) {
  emulation_meet(mask);
  if (mask == 0xffffffffu) ++emulation::current->syncs;
}
static inline unsigned emulation_lane() { return (emulation::current - emulation::threads) & 31u; }
// The value of another lane of the `mask`; a lane outside the own part of `width` lanes is the own one.
template <class T> static T emulation_exchange(unsigned mask, T value, unsigned lane) {
  const unsigned first = (emulation::current - emulation::threads) & ~31u;
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what a warp's lanes can exchange");
  memcpy(&emulation::current->slot, &value, sizeof value);
  emulation_meet(mask);
  if (!(mask >> lane & 1u) || first + lane >= emulation::count)
    emulation::fail("a warp collective takes from a lane that takes no part", lane, 32);
  memcpy(&value, &emulation::threads[first + lane].slot, sizeof value);
  emulation_meet(mask);
  return value;
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned own = emulation_lane(), lane = own ^ bits;  // not into a part behind the own one
  return emulation_exchange(mask, value, lane / width <= own / width ? lane : own);
}
template <class T> static T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return emulation_exchange(mask, value, emulation_lane() / width * width + (unsigned)lane % width);
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = emulation_lane();
  return emulation_exchange(mask, value, own % width + by < width ? own + by : own);
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = emulation_lane();
  return emulation_exchange(mask, value, own % width >= by ? own - by : own);
}
static unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned first = (emulation::current - emulation::threads) & ~31u;
  unsigned votes = 0;
  emulation::current->slot = predicate != 0;
  emulation_meet(mask);
  for (unsigned lane = 0; lane < 32 && first + lane < emulation::count; ++lane)
    if (mask >> lane & 1u) votes |= (unsigned)emulation::threads[first + lane].slot << lane;
  emulation_meet(mask);
  return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline void __threadfence() {}
// Threads run one at a time, so that an atomic operation is a plain one.
template <class T> static T atomicAdd(T* p, T value) { const T old = *p; *p = old + value; return old; }
template <class T> static T atomicMax(T* p, T value) { const T old = *p; *p = old > value ? old : value; return old; }
template <class T> static T atomicMin(T* p, T value) { const T old = *p; *p = old < value ? old : value; return old; }
template <class T> static T atomicCAS(T* p, T is, T value) { const T old = *p; if (old == is) *p = value; return old; }

template <int N, class T> static Pack<T, N> pack_at(emulation::Global<const T> p, long long i) {
  if ((size_t)p.place(i) % alignof(Pack<T, N>)) emulation::fail("elements are read at once that are not aligned", i, p.size);
  Pack<T, N> all;
  memcpy(all.at, p.read(i, N), sizeof all.at);
  return all;
}
template <int N, class T> static Pack<T, N> pack_at(emulation::Global<T> p, long long i) {  // of what a kernel writes, too
  return pack_at<N, T>(emulation::Global<const T>{p.data, p.size, p.touched, p.name}, i);
}
template <int N, class T> static void put_pack(emulation::Global<T> p, long long i, Pack<T, N> all) {
  if ((size_t)p.place(i) % alignof(Pack<T, N>)) emulation::fail("elements are written at once that are not aligned", i, p.size);
  for (int lane = 0; lane < N; ++lane) p[i + lane] = all.at[lane];
}
// Most of a short program's compilation was this: it is in an object that is compiled once, with which programs are linked.
#ifndef KERNELYARD_EMULATION_OBJECT
#include "emulated_blocks.h"
#endif

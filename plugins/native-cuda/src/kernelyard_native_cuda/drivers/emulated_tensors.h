// Tensors on the CPU: accesses within their bounds and, where they are recorded, which threads touched which element since
// which barrier. Included by emulation.h.
#pragma once
#include <type_traits>

namespace emulation {

// --- races ------------------------------------------------------------------------------------------------------------
// Barriers order the threads of a block, and nothing orders blocks. As blocks run one at a time, the last write of an
// element and two reads of it tell whether the next access is a race.
struct Access { unsigned long long epoch; unsigned thread; uint3 block; };  // epoch 0: none
struct Touched { Access written, read, also_read; };  // also_read: unordered with `read`, and of another block if there is one

static bool is_elsewhere(const Access& before) { return before.epoch && before.epoch < block_epoch; }
static bool is_unordered(const Access& before) {
  return is_elsewhere(before) || (before.epoch == epoch && before.thread != (unsigned)(current - threads));
}
static Access access_now() { return {epoch, (unsigned)(current - threads), block_index}; }

struct Tensor { const char* name; long long index, size; };
[[noreturn]] __attribute__((noinline, cold)) static void fail_race(Tensor it, const char* now, const char* then, Access before) {
  const uint3 other = threads[before.thread].index, own = current->index, at = before.block;
  snprintf(message, sizeof message,
           "a race on element %lld of %lld of tensor %s: %s by thread (%u, %u, %u) of block (%u, %u, %u), %s by thread (%u, %u, %u) "
           "of block (%u, %u, %u), with no barrier between them",
           it.index, it.size, it.name, now, own.x, own.y, own.z, block_index.x, block_index.y, block_index.z, then, other.x, other.y,
           other.z, at.x, at.y, at.z);
  for (;;) leave();
}
static void record_read(Touched& it, Tensor tensor) {
  if (is_unordered(it.written)) fail_race(tensor, "read", "written", it.written);
  if (is_unordered(it.read) && !is_elsewhere(it.also_read)) it.also_read = it.read;
  it.read = access_now();
}
static void record_write(Touched& it, Tensor tensor) {
  if (is_unordered(it.written)) fail_race(tensor, "written", "written", it.written);
  if (is_unordered(it.read)) fail_race(tensor, "written", "read", it.read);
  if (is_unordered(it.also_read)) fail_race(tensor, "written", "read", it.also_read);
  it.written = access_now();
}

// --- elements ---------------------------------------------------------------------------------------------------------
template <class T> struct Global;
template <class T> struct TensorElement {  // about to be read or written
  const Global<T>& tensor;
  long long index;
  operator T() const { return *tensor.read(index); }
  const TensorElement& operator=(T value) const { return tensor.write(index, value), *this; }
  const TensorElement& operator=(const TensorElement& other) const { return *this = (T)other; }
  T* operator&() const { return tensor.place(index); }  // for atomic operations, which are not recorded
};
template <class T> struct Global {
  T* data;
  long long size;
  Touched* touched;  // of each element; null where nothing is recorded
  const char* name;

  T* place(long long i) const {
    if (i < 0 || i >= size) fail("an access outside a tensor", i, size);
    return data + i;
  }
  T* read(long long i, int many = 1) const {  // where some neighbours lie, which are read from there
    place(i), place(i + many - 1);
    for (int n = 0; touched && n < many; ++n) record_read(touched[i + n], {name, i + n, size});
    return data + i;
  }
  void write(long long i, T value) const {
    T* to = place(i);
    if (touched) record_write(touched[i], {name, i, size});
    *to = value;
  }
  auto operator[](long long i) const {
    if constexpr (std::is_const<T>::value) return *read(i);
    else return TensorElement<T>{*this, i};
  }
};

// --- arguments --------------------------------------------------------------------------------------------------------
struct Slot { long long value, nbytes; };  // nbytes: of the memory that a pointer points to
struct Given { Slot slot; const char* name; Touched* touched; Slot tensor; };  // tensor: where it lies, of a map too
struct Kind { size_t element_nbytes; bool is_written, is_map; };  // element_nbytes: 0 for what is no tensor
template <class A> struct Argument {
  static constexpr Kind KIND = {0, false, false};
  static A of(const Given& given) { return (A)given.slot.value; }
};
template <class T> struct Argument<Global<T>> {
  static constexpr Kind KIND = {sizeof(T), !std::is_const<T>::value, false};
  static Global<T> of(const Given& given) {
    return {(T*)given.slot.value, given.slot.nbytes / (long long)sizeof(T), given.touched, given.name};
  }
};
}  // namespace emulation

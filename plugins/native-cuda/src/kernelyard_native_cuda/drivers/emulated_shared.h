// Dynamic shared memory on the CPU, byte by byte: who wrote and read it between which barriers, what an asynchronous copy
// has yet to bring, and how often a warp's accesses meet in one bank. Included by emulation.h.
#pragma once

namespace emulation {
template <class T> struct Global;

// --- banks ------------------------------------------------------------------------------------------------------------
// The n-th accesses of a warp's threads between two barriers are taken to be one instruction, as they are in code that
// does not branch by thread. A conflict is a pass over the banks beyond the first that an instruction's bytes need.
struct Touch { unsigned place; unsigned char nbytes; };  // nbytes 0: none
static const unsigned MOST_TOUCHES = 4096;
inline bool counts_conflicts;
inline unsigned long long conflicts, passes;
inline Touch (*touches)[WARP_THREADS];  // of the current thread's barrier interval, for each warp: MOST_TOUCHES rows
inline unsigned touched[MOST_THREADS];

static void count_passes(const Touch* lanes) {
  unsigned width = 0;
  for (unsigned lane = 0; lane < WARP_THREADS; ++lane) width = lanes[lane].nbytes > width ? lanes[lane].nbytes : width;
  if (!width) return;
  const unsigned together = width <= 4 ? 32 : width == 8 ? 16 : 8;
  for (unsigned first = 0; first < WARP_THREADS; first += together) {
    unsigned words[WARP_THREADS * 4], count = 0, load[32] = {}, most = 0;
    for (unsigned lane = first; lane < first + together; ++lane)
      for (unsigned byte = 0; byte < lanes[lane].nbytes; byte += 4) {
        const unsigned word = (lanes[lane].place + byte) / 4;
        bool known = false;
        for (unsigned i = 0; i < count; ++i) known = known || words[i] == word;
        if (known) continue;
        words[count++] = word;
        const unsigned now = ++load[word % 32];
        most = now > most ? now : most;
      }
    passes += most;
    conflicts += most > 1 ? most - 1 : 0;
  }
}
static void count_touches() {
  if (!touches) return;
  for (unsigned warp = 0; warp * WARP_THREADS < count; ++warp) {
    unsigned most = 0;
    for (unsigned lane = 0; lane < WARP_THREADS; ++lane) {
      unsigned& own = touched[warp * WARP_THREADS + lane];
      most = own > most ? own : most;
      own = 0;
    }
    for (unsigned n = 0; n < most; ++n) count_passes(touches[warp * MOST_TOUCHES + n]);
    memset(touches[warp * MOST_TOUCHES], 0, sizeof(Touch) * WARP_THREADS * most);
  }
}
static void touch(long long place, unsigned nbytes) {
  if (!counts_conflicts) return;
  if (!touches) touches = (Touch(*)[WARP_THREADS])calloc(MOST_THREADS / WARP_THREADS * MOST_TOUCHES, sizeof *touches);
  const unsigned thread = current - threads;
  if (touches && touched[thread] < MOST_TOUCHES)
    touches[thread / WARP_THREADS * MOST_TOUCHES + touched[thread]++][thread % WARP_THREADS] = {(unsigned)place,
                                                                                                (unsigned char)nbytes};
}

// --- bytes ------------------------------------------------------------------------------------------------------------
struct Byte {
  unsigned long long written, read;  // the epochs
  Stamp writer, reader;              // reader: the last one
  bool read_alone, read_in_warp;     // by one thread; by those of one warp
  unsigned fences;                   // of the writer, when it wrote
  Thread* awaited;                   // whose asynchronous copy is to write it; null for none
};
static const unsigned MOST_DYNAMIC = 227 << 10;
inline unsigned char dynamic[MOST_DYNAMIC];
inline Byte bytes[MOST_DYNAMIC];
inline unsigned dynamic_size;
static const unsigned char AWAITED = 0xC3;

static void check_span(unsigned place, unsigned nbytes) {
  if (place + nbytes > dynamic_size) fail("an access outside dynamic shared memory", place, dynamic_size);
  if (place % nbytes) fail("an access of shared memory that is not aligned", place, dynamic_size);
}
static void check_awaited(unsigned place, const char* what) {
  if (bytes[place].awaited) fail(what, place, dynamic_size);
}
static void read_bytes(void* to, unsigned place, unsigned nbytes) {
  check_span(place, nbytes);
  for (unsigned at = place; at < place + nbytes; ++at) {
    Byte& byte = bytes[at];
    check_awaited(at, "shared memory is read before the asynchronous copy that writes it is waited for");
    if (byte.written < block_epoch) fail("shared memory is read that nobody wrote", at, dynamic_size);
    if (byte.written == epoch && !is_over(byte.writer))
      fail("shared memory is read before a barrier after another thread wrote it", at, dynamic_size);
    const bool is_first = byte.read != epoch;
    byte.read_alone = is_first || (byte.read_alone && byte.reader.by == current);
    byte.read_in_warp = is_first || (byte.read_in_warp && warp_of(byte.reader.by) == warp_of(current));
    byte.read = epoch, byte.reader = stamp_of(current);
  }
  memcpy(to, dynamic + place, nbytes);
}
// The last reader tells of all, where all were of one warp.
static bool was_read(const Byte& byte) {
  return byte.read != epoch || (byte.read_alone && byte.reader.by == current) || (byte.read_in_warp && is_over(byte.reader));
}
static void check_unused(unsigned place, unsigned nbytes) {
  for (unsigned at = place; at < place + nbytes; ++at) {
    Byte& byte = bytes[at];
    check_awaited(at, "shared memory is written while an asynchronous copy is to write it");
    if (byte.written == epoch && !is_over(byte.writer))
      fail("two threads write one element of shared memory", at, dynamic_size);
    if (!was_read(byte)) fail("shared memory is written before a barrier after another thread read it", at, dynamic_size);
  }
  if (extension.check_write) extension.check_write(place, nbytes);
}
static void check_write(unsigned place, unsigned nbytes) {
  check_span(place, nbytes);
  check_unused(place, nbytes);
}
static void mark_written(unsigned place, unsigned nbytes, Thread* by = current) {
  for (unsigned at = place; at < place + nbytes; ++at) {
    Byte& byte = bytes[at];
    byte.written = epoch, byte.writer = stamp_of(by), byte.fences = by->fences, byte.awaited = nullptr;
  }
}
static void write_bytes(unsigned place, const void* from, unsigned nbytes) {
  check_write(place, nbytes);
  memcpy(dynamic + place, from, nbytes);
  mark_written(place, nbytes);
}

// --- asynchronous copies ----------------------------------------------------------------------------------------------
// What a copy brings is kept aside until its thread waits for its group; until then the place holds other bytes.
struct Copy { unsigned place, nbytes, group; unsigned char data[16]; };
static const unsigned MOST_COPIES = 512;
struct Copies { unsigned count, group; Copy all[MOST_COPIES]; };
inline Copies* copies;  // for each thread
inline unsigned copies_under_way;

static void forget_copies() {  // those that nobody waited for, of any kernel
  if (!copies_under_way) return;
  copies_under_way = 0;
  for (unsigned i = 0; i < MOST_THREADS; ++i) {
    Copies& own = copies[i];
    for (unsigned n = 0; n < own.count; ++n)
      for (unsigned at = 0; at < own.all[n].nbytes; ++at) bytes[own.all[n].place + at].awaited = nullptr;
    own.count = 0;
  }
}
static Copies& own_copies() {
  if (!copies) copies = (Copies*)calloc(MOST_THREADS, sizeof(Copies));
  return copies[current - threads];
}
static void start_copy(unsigned place, const void* from, unsigned nbytes) {
  Copies& own = own_copies();
  check_write(place, nbytes);
  if (own.count == MOST_COPIES) fail("more asynchronous copies under way than are emulated", own.count, MOST_COPIES);
  Copy& copy = own.all[own.count++];
  ++copies_under_way;
  copy.place = place, copy.nbytes = nbytes, copy.group = own.group;
  if (from) memcpy(copy.data, from, nbytes);
  else memset(copy.data, 0, nbytes);
  memset(dynamic + place, AWAITED, nbytes);
  for (unsigned at = place; at < place + nbytes; ++at) bytes[at].awaited = current;
}
static void finish_copies(unsigned but) {  // all groups but the last few
  Copies& own = own_copies();
  unsigned left = 0;
  for (unsigned n = 0; n < own.count; ++n) {
    Copy& copy = own.all[n];
    if (copy.group + but < own.group) {
      memcpy(dynamic + copy.place, copy.data, copy.nbytes);
      mark_written(copy.place, copy.nbytes);
    } else {
      own.all[left++] = copy;
    }
  }
  copies_under_way -= own.count - left;
  own.count = left;
}
}  // namespace emulation

// --- what kernels call ------------------------------------------------------------------------------------------------
template <class T> static T shared_at(unsigned place) {
  T value;
  emulation::touch(place, sizeof value);
  emulation::read_bytes(&value, place, sizeof value);
  return value;
}
template <class T> static void put_shared(unsigned place, T value) {
  emulation::touch(place, sizeof value);
  emulation::write_bytes(place, &value, sizeof value);
}
template <int BYTES, class T> static void cp_async(unsigned place, emulation::Global<const T> p, long long i, bool inside) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what cp.async can copy");
  const int many = BYTES / sizeof(T);
  emulation::touch(place, BYTES);
  if (!inside) return emulation::start_copy(place, nullptr, BYTES);
  if ((size_t)p.place(i) % BYTES) emulation::fail("an asynchronous copy from a place that is not aligned", i, p.size);
  emulation::start_copy(place, p.read(i, many), BYTES);
}
static inline void cp_async_commit() { ++emulation::own_copies().group; }
template <int LEFT> static void cp_async_wait() { emulation::finish_copies(LEFT); }

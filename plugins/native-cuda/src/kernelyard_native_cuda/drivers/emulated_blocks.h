// How a launch runs its blocks: one after another, the threads of each from one barrier to the next. Included by emulation.h.
#pragma once

namespace emulation {

// --- a block ----------------------------------------------------------------------------------------------------------
static bool release_warps() {
  bool released = false;
  for (unsigned first = 0; first < count; first += 32) {
    const unsigned end = first + 32 < count ? first + 32 : count;
    for (unsigned one = first; one < end; ++one) {
      if (threads[one].state != IN_WARP) continue;
      const unsigned mask = threads[one].lane_mask;
      bool complete = true;
      for (unsigned other = first; other < end; ++other)
        if (mask >> (other - first) & 1u)
          complete = complete && threads[other].state == IN_WARP && threads[other].lane_mask == mask;
      for (unsigned other = first; complete && other < end; ++other)
        if (mask >> (other - first) & 1u) threads[other].state = READY;
      released = released || complete;
    }
  }
  return released;
}

// Whether the block went on at its barrier; where it cannot, `message` says why.
static bool release_barrier() {
  unsigned waiting = 0, done = 0, asynchronous = 0;
  for (unsigned i = 0; i < count; ++i) {
    waiting += threads[i].state == AT_BARRIER, done += threads[i].state == DONE;
    asynchronous += threads[i].state == WAITING;
  }
  if (waiting == count) {
    count_touches();
    ++epoch;
    for (unsigned i = 0; i < count; ++i) threads[i].state = READY;
    return true;
  }
  if (done != count)
    snprintf(message, sizeof message,
             "%u of %u threads of block (%u, %u, %u) wait at __syncthreads, %u at an mbarrier or for wgmma, %u at a warp "
             "collective, %u have ended",
             waiting, count, block_index.x, block_index.y, block_index.z, asynchronous, count - waiting - asynchronous - done,
             done);
  else if (extension.check_end) extension.check_end();
  return false;
}

static void run_block() {
  block_epoch = ++epoch;
  forget_copies();
  start_clocks();
  if (extension.start) extension.start();
  for (unsigned i = 0; i < count; ++i) {
    threads[i].state = READY;
    threads[i].syncs = threads[i].fences = 0;
    threads[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    prepare(threads[i].context, stacks + i * STACK, STACK, start);
  }
  do {
    bool ran;
    do {
      ran = false;
      for (unsigned i = 0; i < count; ++i)
        if (threads[i].state == READY) {
          current = &threads[i];
          change(scheduler, current->context);
          if (message[0]) return;
          ran = true;
        }
      ran = release_warps() || ran;
      if (!ran && extension.release) ran = extension.release();
      if (message[0]) return;
    } while (ran);
  } while (release_barrier());
  count_touches();
}

// --- launches ---------------------------------------------------------------------------------------------------------
enum { AS_NUMBERED, LAST_FIRST };  // orders of blocks; any other is a seed to shuffle by

// What is recorded of a launch's tensors.
struct Records {
  List<List<Touched>> all;
  void start(Given* given, const Kind* kinds, int count) {
    for (int n = 0; n < count; ++n) {
      given[n].tensor = kinds[n].is_map ? *(const Slot*)given[n].slot.value : given[n].slot;
      for (int other = 0; other < n; ++other)
        if (kinds[n].is_written || kinds[other].is_written) check_apart(given[n], given[other]);
      if (!kinds[n].element_nbytes) continue;
      given[n].touched = all.add(List<Touched>(given[n].slot.nbytes / kinds[n].element_nbytes)).items;
    }
  }
  static void check_apart(const Given& one, const Given& other) {  // the nbytes of numbers are 0
    const Slot a = one.tensor, b = other.tensor;
    if (a.nbytes && b.nbytes && a.value < b.value + b.nbytes && b.value < a.value + a.nbytes)
      snprintf(message, sizeof message, "tensors %s and %s overlap, although the kernel takes them as __restrict__ and writes one",
               one.name, other.name);
  }
};
static List<size_t> shuffled(size_t total, unsigned long long seed) {
  List<size_t> order(total);
  for (size_t n = 0; n < total; ++n) {  // Fisher and Yates, with Knuth's MMIX generator
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const size_t at = (seed >> 33) % (n + 1);
    order[n] = order[at], order[at] = n;
  }
  return order;
}
static void run_blocks(unsigned how) {
  const size_t total = (size_t)grid.x * grid.y * grid.z;
  const List<size_t> order = how > LAST_FIRST ? shuffled(total, how) : List<size_t>();
  for (size_t n = 0; n < total && !message[0]; ++n) {
    const size_t number = how == AS_NUMBERED ? n : how == LAST_FIRST ? total - 1 - n : order[n];
    const size_t row = number / grid.x;
    block_index = {(unsigned)(number % grid.x), (unsigned)(row % grid.y), (unsigned)(row / grid.y)};
    run_block();
  }
}
const char* run(const Start& how, Given* given, const Kind* kinds, int arguments_count) {
  grid = {how.grid[0], how.grid[1], how.grid[2]}, block = {how.block[0], how.block[1], how.block[2]};
  count = block.x * block.y * block.z;
  dynamic_size = how.shared_nbytes;
  is_last_first = how.order == LAST_FIRST;
  message[0] = 0;
  if (!stacks) stacks = (char*)malloc(STACK * MOST_THREADS);
  if (!stacks || count < 1 || count > MOST_THREADS) return "a block of more threads than there may be";
  if (dynamic_size > MOST_DYNAMIC) return "more dynamic shared memory than there may be";
  Records records;
  if (how.records_tensors) records.start(given, kinds, arguments_count);
  run_blocks(how.order);
  return message[0] ? message : nullptr;
}
}  // namespace emulation

// Passes over the banks beyond those that accesses of shared memory need, and passes, since counting began.
EXPORTED void emulation_count_conflicts(int on) {
  emulation::counts_conflicts = on;
  emulation::conflicts = emulation::passes = 0;
}
EXPORTED unsigned long long emulation_conflicts() { return emulation::conflicts; }
EXPORTED unsigned long long emulation_passes() { return emulation::passes; }

// What happened before what between two barriers of a block: vector clocks of warps, which mbarriers pass on.
// Included by emulation.h.
// Source: L. Lamport, "Time, clocks, and the ordering of events in a distributed system" (1978); C. Fidge, "Timestamps in
// message-passing systems that preserve the partial ordering" (1988).
#pragma once

namespace emulation {
static const unsigned WARPS = MOST_THREADS / WARP_THREADS, CLOCKS = WARPS + 1;  // the last: of bulk copies
struct Clock {
  unsigned of[CLOCKS];
  void join(const Clock& other) {
    for (unsigned n = 0; n < CLOCKS; ++n) of[n] = of[n] < other.of[n] ? other.of[n] : of[n];
  }
};
inline Clock clocks[CLOCKS];  // of each warp: what of the others it knows to be over, and its own time
static Thread* const bulk_copies = threads + MOST_THREADS;  // who writes what they bring

static unsigned warp_of(const Thread* thread) { return (unsigned)(thread - threads) / WARP_THREADS; }
static Clock& clock_of(const Thread* thread) { return clocks[warp_of(thread)]; }
static void start_clocks() {
  memset(clocks, 0, sizeof clocks);
  for (unsigned n = 0; n < CLOCKS; ++n) clocks[n].of[n] = 1;
}
// What a warp hands on where one of its threads arrives: all that it did so far.
static Clock released(const Thread* thread) {
  const Clock now = clock_of(thread);
  ++clock_of(thread).of[warp_of(thread)];
  return now;
}

// Who did something, after how many of its warp's syncs, and when by its warp's clock.
struct Stamp { Thread* by; unsigned syncs, time; };
static Stamp stamp_of(Thread* thread) { return {thread, thread->syncs, clock_of(thread).of[warp_of(thread)]}; }
// Whether the current thread's warp has met at a __syncwarp since a thread of it was at that of this number.
static bool met_since(const Thread* thread, unsigned syncs) {
  return warp_of(thread) == warp_of(current) && current->syncs > syncs;
}
// Whether something in the same barrier interval is over, as far as the current thread can know.
static bool is_over(const Stamp& it) {
  if (it.by == current || met_since(it.by, it.syncs)) return true;
  return warp_of(it.by) != warp_of(current) && clock_of(current).of[warp_of(it.by)] >= it.time;
}
}  // namespace emulation

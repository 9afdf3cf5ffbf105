// mbarriers and bulk copies of tensors (TMA) on the CPU: a copy brings its bytes when no thread can go on without them, and
// what it brought is for those who waited for its mbarrier, in the phase in which it was expected.
// Included by warpgroups.cuh.
// Source: PTX ISA 8.8, "mbarrier", "cp.async.bulk.tensor", "Tensor".
#pragma once

// What cuTensorMapEncodeTiled makes, as the emulator has it: the axis along memory is the first.
struct alignas(64) TensorMap {
  unsigned char* address;
  long long nbytes;  // of the memory there
  unsigned rank, element_nbytes;
  unsigned long long sizes[5], strides[5];  // strides: in bytes
  unsigned box[5], is_swizzled;
};
static_assert(sizeof(TensorMap) == 128, "the room that a tensor map has");

namespace emulation {
template <> struct Argument<TensorMap> {
  static constexpr Kind KIND = {0, false, true};
  static const TensorMap& of(const Given& given) { return *(const TensorMap*)given.slot.value; }
};

// --- mbarriers --------------------------------------------------------------------------------------------------------
struct Barrier {
  unsigned place;
  unsigned expected, pending;  // arrivals of a phase, and those to come
  long long nbytes;            // that copies have yet to bring
  unsigned phase;
  Clock arrived, passed;       // what arrived so far, and before the last phase was over
  unsigned long long since;    // the epoch, when it was initialized
  Thread* maker;
  unsigned fences;             // of the maker, then
};
static List<Barrier> barriers;  // of the block
static bool has_passed;         // a phase is over since threads that wait were asked

static Barrier* find_barrier(unsigned place) {
  for (Barrier& it : barriers)
    if (it.place == place) return &it;
  return nullptr;
}
static Barrier& barrier_at(unsigned place) {
  Barrier* const found = find_barrier(place);
  if (!found) fail("an mbarrier that nobody initialized", place, dynamic_size);
  if (found->since == epoch && found->maker != current)
    fail("an mbarrier is used before a barrier after another thread initialized it", place, dynamic_size);
  return *found;
}
static void pass(Barrier& it) {
  if (it.pending || it.nbytes) return;
  ++it.phase, it.pending = it.expected;
  it.passed.join(it.arrived);
  has_passed = true;
}
static void arrive(unsigned place, unsigned nbytes) {
  Barrier& it = barrier_at(place);
  if (!it.pending) fail("more arrivals at an mbarrier than a phase of it has", place, dynamic_size);
  it.nbytes += nbytes, --it.pending;
  it.arrived.join(released(current));
  pass(it);
}
static void wait_for_release() {
  current->state = WAITING;
  leave();
}

// --- bulk copies ------------------------------------------------------------------------------------------------------
struct BulkCopy { unsigned place, nbytes, barrier; TensorMap map; int at[5]; Clock issued; };
static List<BulkCopy> bulk;  // under way

static unsigned swizzled(unsigned place) { return place ^ (place >> 7 & 7) << 4; }
static void put_element(const BulkCopy& it, const unsigned (&inside)[5], unsigned number) {
  const TensorMap& map = it.map;
  const unsigned nbytes = map.element_nbytes;
  unsigned place = it.place + number * nbytes;
  place = map.is_swizzled ? swizzled(place) : place;
  long long offset = 0;
  for (unsigned axis = 0; axis < map.rank; ++axis) {
    const long long index = (long long)it.at[axis] + inside[axis];
    if (index < 0 || index >= (long long)map.sizes[axis]) return (void)memset(dynamic + place, 0, nbytes);
    offset += index * map.strides[axis];
  }
  memcpy(dynamic + place, map.address + offset, nbytes);
}
static void finish_bulk(const BulkCopy& it) {
  unsigned inside[5] = {}, number = 0;
  for (bool more = true; more; ++number) {
    put_element(it, inside, number);
    more = false;
    for (unsigned axis = 0; axis < it.map.rank && !more; ++axis) {
      more = ++inside[axis] < it.map.box[axis];
      if (!more) inside[axis] = 0;
    }
  }
  mark_written(it.place, it.nbytes, bulk_copies);
  Barrier& barrier = *find_barrier(it.barrier);
  barrier.arrived.join(it.issued);
  barrier.arrived.join(released(bulk_copies));
  barrier.nbytes -= it.nbytes;
  pass(barrier);
}
static void start_bulk(const BulkCopy& it) {
  const Barrier& barrier = barrier_at(it.barrier);
  if (barrier.maker->fences <= barrier.fences)
    fail("a bulk copy uses an mbarrier whose initialization was not fenced", it.barrier, dynamic_size);
  if (it.place % 128) fail("a bulk copy to a place that is not aligned", it.place, dynamic_size);
  if (it.place + it.nbytes > dynamic_size) fail("a bulk copy to outside dynamic shared memory", it.place + it.nbytes, dynamic_size);
  long long last = it.map.element_nbytes;
  for (unsigned axis = 0; axis < it.map.rank; ++axis) last += (it.map.sizes[axis] - 1) * it.map.strides[axis];
  if (last > it.map.nbytes) fail("a tensor map reaches outside its tensor", last, it.map.nbytes);
  check_unused(it.place, it.nbytes);
  memset(dynamic + it.place, AWAITED, it.nbytes);
  for (unsigned at = it.place; at < it.place + it.nbytes; ++at) bytes[at].awaited = bulk_copies;
  bulk.add(BulkCopy(it));
}
static void forget_bulk() {
  for (const BulkCopy& it : bulk)
    for (unsigned at = it.place; at < it.place + it.nbytes; ++at) bytes[at].awaited = nullptr;
  bulk.clear(), barriers.clear(), has_passed = false;
}
// Lets those who wait see whether what they wait for is there; where nobody can go on, a copy comes.
static bool release_waiting() {
  bool is_waited_for = false;
  for (unsigned i = 0; i < count; ++i) is_waited_for = is_waited_for || threads[i].state == WAITING;
  if (is_waited_for && !has_passed && bulk.many) {
    const size_t number = is_last_first ? bulk.many - 1 : 0;
    const BulkCopy it = bulk[number];
    bulk.erase(number);
    current = bulk_copies;
    finish_bulk(it);
    return true;
  }
  bool released = false;
  for (unsigned i = 0; has_passed && i < count; ++i)
    if (threads[i].state == WAITING) threads[i].state = READY, released = true;
  has_passed = false;
  return released;
}
static void check_bulk() {
  if (bulk.many) snprintf(message, sizeof message, "a block ends while a bulk copy to place %u is under way", bulk[0].place);
}
static void check_barriers(unsigned place, unsigned nbytes) {
  for (const Barrier& it : barriers)
    if (place < it.place + 8 && it.place < place + nbytes) fail("an mbarrier is overwritten", place, dynamic_size);
}
static const int has_bulk_copies = (extension = {forget_bulk, release_waiting, check_bulk, check_barriers}, 0);
}  // namespace emulation

// --- what kernels call ------------------------------------------------------------------------------------------------
static void mbarrier_init(unsigned place, unsigned arrivals) {
  using namespace emulation;
  check_write(place & ~7u, 8);
  if (place % 8) fail("an mbarrier that is not aligned", place, dynamic_size);
  const Barrier made = {place, arrivals, arrivals, 0, 0, {}, {}, epoch, current, current->fences};
  Barrier* const found = find_barrier(place);
  if (found) *found = made;
  else barriers.add(Barrier(made));
}
static void fence_async() { ++emulation::current->fences; }
static void mbarrier_arrive(unsigned place) { emulation::arrive(place, 0); }
static void mbarrier_expect(unsigned place, unsigned nbytes) { emulation::arrive(place, nbytes); }
static void mbarrier_wait(unsigned place, unsigned parity) {
  using namespace emulation;
  while (barrier_at(place).phase % 2 == parity) wait_for_release();
  clock_of(current).join(barrier_at(place).passed);
}
template <int RANK> static void bulk_copy(unsigned place, const TensorMap& map, unsigned barrier, const int (&at)[RANK]) {
  using namespace emulation;
  if (map.rank != RANK) fail("a bulk copy with another number of axes than its tensor map", RANK, map.rank);
  BulkCopy it = {place, map.element_nbytes, barrier, map, {}, clock_of(current)};
  for (int axis = 0; axis < RANK; ++axis) it.nbytes *= map.box[axis], it.at[axis] = at[axis];
  start_bulk(it);
}

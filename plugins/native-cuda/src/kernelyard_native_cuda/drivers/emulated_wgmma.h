// wgmma on the CPU: products of matrices in shared memory, by the descriptors of their layouts, that run behind the threads
// of a warp group. Totals are no numbers until they are waited for. Included by warpgroups.cuh.
// Source: PTX ISA 8.8, "Asynchronous warpgroup level matrix instructions": matrix-descriptor format, shared memory layouts,
// register fragments of m64nNk16.
#pragma once

namespace emulation {
static const unsigned GROUP_THREADS = 128, GROUPS = MOST_THREADS / GROUP_THREADS, PIECE = 16;

// --- who reads which pieces of 16 bytes --------------------------------------------------------------------------------
struct Reading { unsigned long long epoch; unsigned time, under_way; };  // time: by the warp's clock, when it was over
static Reading readings[MOST_DYNAMIC / PIECE][WARPS];
static void check_readings(unsigned place, unsigned nbytes) {
  check_barriers(place, nbytes);
  for (unsigned piece = place / PIECE; piece * PIECE < place + nbytes; ++piece)
    for (unsigned warp = 0; warp * WARP_THREADS < count; ++warp) {
      const Reading& it = readings[piece][warp];
      if (it.epoch < block_epoch) continue;
      if (it.under_way) fail("shared memory is written while wgmma may read it", piece * PIECE, dynamic_size);
      if (it.epoch == epoch && warp != warp_of(current) && clock_of(current).of[warp] < it.time)
        fail("shared memory is written although wgmma of another warp may read it", piece * PIECE, dynamic_size);
    }
}
static void check_piece(unsigned place) {
  if (place + PIECE > dynamic_size) fail("wgmma reads outside dynamic shared memory", place, dynamic_size);
  for (unsigned at = place; at < place + PIECE; ++at) {
    const Byte& byte = bytes[at];
    check_awaited(at, "wgmma reads shared memory before the copy that writes it is waited for");
    if (byte.written < block_epoch) fail("wgmma reads shared memory that nobody wrote", at, dynamic_size);
    if (byte.written == epoch && !is_over(byte.writer))
      fail("wgmma reads shared memory that another thread may write", at, dynamic_size);
    if (byte.writer.by != bulk_copies && byte.writer.by->fences <= byte.fences)
      fail("wgmma reads what a thread wrote with no fence behind it", at, dynamic_size);
  }
}

// --- matrices ---------------------------------------------------------------------------------------------------------
struct Matrix { unsigned start, leading, stride; bool along_sum; };
static Matrix matrix_of(unsigned long long descriptor, bool along_sum) {
  if (descriptor >> 62 != 1) fail("a layout of wgmma that is not emulated", descriptor >> 62, 4);
  const auto bytes_at = [&](int bit) { return (unsigned)(descriptor >> bit & 0x3fff) << 4; };
  return {bytes_at(0), bytes_at(16), bytes_at(32), along_sum};
}
// Where the piece is that has an element, of 8 neighbours along the sum, or of 8 rows.
static unsigned piece_of(const Matrix& it, unsigned row, unsigned k) {
  const unsigned at = it.along_sum ? row / 8 * it.stride + row % 8 * 128 + k / 8 * 16
                                   : row / 64 * it.leading + row % 64 / 8 * 16 + k / 8 * it.stride + k % 8 * 128;
  return swizzled(it.start + at);
}
template <class T> static float element_of(const Matrix& it, unsigned row, unsigned k) {
  T value;
  memcpy(&value, dynamic + piece_of(it, row, k) + (it.along_sum ? k : row) % 8 * sizeof(T), sizeof(T));
  return factor(value);
}
static void each_piece(const Matrix& it, unsigned first_row, unsigned rows, List<unsigned>& pieces) {
  for (unsigned row = first_row; row < first_row + rows; row += it.along_sum ? 1 : 8)
    for (unsigned k = 0; k < 16; k += it.along_sum ? 8 : 1) pieces.add(piece_of(it, row, k));
}

// --- instructions under way -------------------------------------------------------------------------------------------
// The totals of a thread while products are added to them. group: the last in which one is.
struct Totals { float* registers; List<float> values; unsigned group; };
struct Product {
  unsigned long long a, b;  // a: 0 where it is in registers
  unsigned columns, arrived;
  bool adds;
  const float* totals[GROUP_THREADS];  // the registers whose `Totals` they are
  unsigned factors[GROUP_THREADS][4];
};
// What a thread's registers of a product's first factor have, for as long as it may be read.
struct Factors { const unsigned* registers; unsigned values[4], group; };
struct Group { List<unsigned> pieces; unsigned number; };  // what a warp reads
static List<Totals> totals_of[MOST_THREADS];
static List<Factors> factors_of[MOST_THREADS];
static List<Product> products_of[GROUPS];
static unsigned long long issued[MOST_THREADS], computed[GROUPS];  // products so far
static List<Group> groups_of[WARPS];
static unsigned group_of[MOST_THREADS];  // the number of the group that is not committed yet
static unsigned long long ends_of[MOST_THREADS][64];  // products before the end of a group, by its number
static bool is_fenced[MOST_THREADS];

static void forget_products() {
  forget_bulk();
  for (auto& all : totals_of) all.clear();
  for (auto& all : factors_of) all.clear();
  for (auto& all : products_of) all.clear();
  for (unsigned warp = 0; warp < WARPS; ++warp) groups_of[warp].clear();
  memset(issued, 0, sizeof issued), memset(computed, 0, sizeof computed), memset(group_of, 0, sizeof group_of);
  memset(is_fenced, 0, sizeof is_fenced);
}
template <class T> static List<float> elements_of(const Matrix& it, unsigned rows) {
  List<float> found(rows * 16);
  for (unsigned row = 0; row < rows; ++row)
    for (unsigned k = 0; k < 16; ++k) found[row * 16 + k] = element_of<T>(it, row, k);
  return found;
}
template <class T> static List<float> elements_of(const unsigned (&factors)[GROUP_THREADS][4]) {
  List<float> found(64 * 16);
  for (unsigned thread = 0; thread < GROUP_THREADS; ++thread)
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, k = i / 4 * 8 + thread % 4 * 2 + i % 2;
      found[row * 16 + k] = factor(Lanes<T>::at(factors[thread][i / 2], i % 2));
    }
  return found;
}
static Totals* find_totals(unsigned thread, const float* registers) {
  for (Totals& each : totals_of[thread])
    if (each.registers == registers) return &each;
  return nullptr;
}
static void compute(const Product& it, const List<float>& left, const List<float>& right) {
  const unsigned first = (current - threads) / GROUP_THREADS * GROUP_THREADS;
  for (unsigned thread = 0; thread < GROUP_THREADS; ++thread) {
    float* const totals = find_totals(first + thread, it.totals[thread])->values.items;
    for (unsigned i = 0; i < it.columns / 2; ++i) {
      const float* row = &left[(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8) * 16];
      const float* column = &right[(i / 4 * 8 + thread % 4 * 2 + i % 2) * 16];
      float& total = totals[i];
      total = it.adds ? total : 0.0f;
      for (unsigned k = 0; k < 16; ++k) total += row[k] * column[k];
    }
  }
}
static const float* totals_at(float* registers, unsigned many) {
  const unsigned thread = current - threads;
  if (Totals* const found = find_totals(thread, registers)) return found->group = group_of[thread], registers;
  Totals& made = totals_of[thread].add({registers, List<float>(many), group_of[thread]});
  memcpy(made.values.items, registers, many * sizeof(float));
  for (unsigned i = 0; i < many; ++i) registers[i] = __int_as_float(0x7fc00000);
  return registers;
}
// The pieces that a warp's part of a product reads; marked as being read until the warp has waited.
static void start_reading(const Matrix& it, unsigned first_row, unsigned rows) {
  const unsigned thread = current - threads, warp = thread / WARP_THREADS;
  Group group = {{}, group_of[thread]};
  each_piece(it, first_row, rows, group.pieces);
  for (unsigned place : group.pieces) {
    check_piece(place);
    Reading& reading = readings[place / PIECE][warp];
    reading.under_way = reading.epoch < block_epoch ? 1 : reading.under_way + 1;
    reading.epoch = epoch;
  }
  groups_of[warp].add(static_cast<Group&&>(group));
}
// Ends what a warp's products of all groups before one read.
static void end_reading(unsigned before) {
  const unsigned warp = warp_of(current), now = clock_of(current).of[warp];
  List<Group> left;
  for (Group& group : groups_of[warp]) {
    if (group.number >= before) left.add(static_cast<Group&&>(group));
    else
      for (unsigned place : group.pieces) {
        Reading& reading = readings[place / PIECE][warp];
        reading.epoch = epoch, reading.time = now, --reading.under_way;
      }
  }
  groups_of[warp] = static_cast<List<Group>&&>(left);
}
// Ends what a thread's products of all groups before one read of its registers.
static void end_factors(unsigned before) {
  List<Factors> left;
  for (const Factors& it : factors_of[current - threads])
    if (it.group >= before) left.add(Factors(it));
    else if (memcmp(it.registers, it.values, sizeof it.values))
      fail("registers are written while wgmma may read them", it.group, before);
  factors_of[current - threads] = static_cast<List<Factors>&&>(left);
}
// The current thread's next product. All of its warp come here.
static Product& next_product(unsigned long long a, unsigned long long b, unsigned columns, bool adds) {
  const unsigned thread = current - threads, group = thread / GROUP_THREADS;
  fill_half_values();
  if (!is_fenced[thread]) fail("wgmma with no wgmma.fence before it", thread, count);
  const unsigned long long number = issued[thread]++;
  auto& all = products_of[group];
  while (all.many <= number - computed[group]) all.add({a, b, columns, 0, adds, {}, {}});
  Product& it = all[number - computed[group]];
  if (it.a != a || it.b != b || it.adds != adds || it.columns != columns)
    fail("warps of a group that differ on a product", thread, count);
  ++it.arrived;
  return it;
}
static void end_product() {
  const unsigned group = (current - threads) / GROUP_THREADS;
  products_of[group].erase(0);
  ++computed[group];
  has_passed = true;
}
static void check_products() {
  check_bulk();
  for (unsigned thread = 0; thread < count; ++thread)
    if (!message[0] && totals_of[thread].many)
      snprintf(message, sizeof message, "a block ends while wgmma of thread %u is under way", thread);
}
static const int has_wgmma = (extension = {forget_products, release_waiting, check_products, check_readings}, 0);
}  // namespace emulation

// --- what kernels call ------------------------------------------------------------------------------------------------
static unsigned long long wgmma_descriptor(unsigned place, unsigned leading, unsigned stride) {
  return place >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
static void wgmma_fence() {
  emulation_meet(0xffffffffu);
  emulation::is_fenced[emulation::current - emulation::threads] = true;
}
template <class T, int N, bool A_ALONG, bool B_ALONG>
static void wgmma(float (&totals)[N / 2], unsigned long long a, unsigned long long b, bool adds) {
  using namespace emulation;
  const unsigned thread = (current - threads) % GROUP_THREADS;
  emulation_meet(0xffffffffu);
  Product& it = next_product(a, b, N, adds);
  const Matrix left = matrix_of(a, A_ALONG), right = matrix_of(b, B_ALONG);
  if (thread % WARP_THREADS == 0) start_reading(left, thread / WARP_THREADS * 16, 16), start_reading(right, 0, N);
  it.totals[thread] = totals_at(totals, N / 2);
  if (it.arrived == GROUP_THREADS) compute(it, elements_of<T>(left, 64), elements_of<T>(right, N)), end_product();
}
template <class T, int N, bool B_ALONG>
static void wgmma(float (&totals)[N / 2], const unsigned (&a)[4], unsigned long long b, bool adds) {
  using namespace emulation;
  const unsigned thread = (current - threads) % GROUP_THREADS;
  emulation_meet(0xffffffffu);
  Product& it = next_product(0, b, N, adds);
  const Matrix right = matrix_of(b, B_ALONG);
  if (thread % WARP_THREADS == 0) start_reading(right, 0, N);
  Factors own = {a, {}, group_of[current - threads]};
  memcpy(own.values, a, sizeof own.values), memcpy(it.factors[thread], a, sizeof own.values);
  factors_of[current - threads].add(Factors(own));
  it.totals[thread] = totals_at(totals, N / 2);
  if (it.arrived == GROUP_THREADS) compute(it, elements_of<T>(it.factors), elements_of<T>(right, N)), end_product();
}
static void wgmma_commit() {
  using namespace emulation;
  const unsigned thread = current - threads;
  emulation_meet(0xffffffffu);
  ends_of[thread][group_of[thread]++ % 64] = issued[thread];
}
template <int LEFT> static void wgmma_wait() {
  using namespace emulation;
  const unsigned thread = current - threads, before = group_of[thread] > LEFT ? group_of[thread] - LEFT : 0;
  emulation_meet(0xffffffffu);
  while (before && computed[thread / GROUP_THREADS] < ends_of[thread][(before - 1) % 64]) wait_for_release();
  emulation_meet(0xffffffffu);
  if (thread % WARP_THREADS == 0) end_reading(before);
  end_factors(before);
  auto& all = totals_of[thread];
  for (size_t n = all.many; n-- > 0;)
    if (all[n].group < before) {
      memcpy(all[n].registers, all[n].values.items, all[n].values.many * sizeof(float));
      all.erase(n);
    }
  is_fenced[thread] = false;
}
template <int N> static void wgmma_settle(float (&)[N]) {}
template <int N> static void wgmma_settle(unsigned (&)[N]) {}
template <int MOST> static void take_registers() { emulation_meet(0xffffffffu); }
template <int MOST> static void give_registers() { emulation_meet(0xffffffffu); }

// --- sorting by digits ------------------------------------------------------------------------------------------------
#define DIGITS 256

// The lanes of a warp whose digit is the own one, by a vote on each bit. All lanes must come here.
__device__ inline unsigned lanes_of_digit(int digit) {
  unsigned same = ALL_LANES;
  for (int bit = 0; bit < 8; ++bit) {
    const unsigned set = __ballot_sync(ALL_LANES, digit >> bit & 1);
    same &= digit >> bit & 1 ? set : ~set;
  }
  return same;
}

// Counts the digits of a tile's keys for each warp of a block, in `of_warps`; `rank(i, r)` is given how many of the warp's
// earlier keys have the digit of its i-th. A warp's keys are neighbours; beyond `count` there are none, and their digit,
// which no key has, is DIGITS. All threads must come here.
template <int THREADS, int ITEMS, class Keys, class Counters, class Rank> __device__ void count_digits(
    Keys keys, long long first, long long count, int shift, Counters& of_warps, Rank rank) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int i = threadIdx.x; i < THREADS / WARP * DIGITS; i += THREADS) of_warps[i] = 0;
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const long long at = (warp * ITEMS + i) * WARP + lane;
    const bool is_key = at < count;
    const int digit = is_key ? (int)(keys[first + at] >> shift & (DIGITS - 1)) : 0;
    const unsigned same = lanes_of_digit(digit) & __ballot_sync(ALL_LANES, is_key);
    const int before = __popc(same & ((1u << lane) - 1));
    const int counted = is_key ? of_warps[warp * DIGITS + digit] : 0;
    __syncwarp();
    if (is_key && before == 0) of_warps[warp * DIGITS + digit] = counted + __popc(same);
    __syncwarp();
    rank(i, counted + before);
  }
  __syncthreads();
}

// The sum of the values of threads before the own one. All threads must come here.
template <int THREADS> __device__ int sum_before(int value, int& total) {
  int before = 0;
  const int scanned = lanes_scanned<Sum>(value);
  total = warps_scanned<Sum, THREADS>(of_lane(scanned, WARP - 1), before, 0);
  __syncthreads();
  return before + scanned - value;
}

// Counts the keys of each digit in a tile: `counts` has them at the digit's first place and the tile's number.
template <int THREADS, int ITEMS> __device__ void count_tile(
    GLOBAL(const unsigned long long) keys, long long first, long long count, int shift, GLOBAL(int) counts,
    long long place, long long tiles) {
  SHARED(int, of_warps, THREADS / WARP * DIGITS);
  count_digits<THREADS, ITEMS>(keys, first, count, shift, of_warps, [](int, int) {});
  for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS) {
    int total = 0;
    for (int warp = 0; warp < THREADS / WARP; ++warp) total += of_warps[warp * DIGITS + digit];
    counts[place + digit * tiles] = total;
  }
}

// Turns the counts of a digit, one for each tile, into numbers of keys in the tiles before; `totals` gets the sum.
template <int THREADS> __device__ void scan_counts(
    GLOBAL(int) counts, GLOBAL(int) totals, long long number, long long tiles) {
  int before = 0;
  for (long long start = 0; start < tiles; start += THREADS) {
    const long long at = start + threadIdx.x;
    int total;
    const int here = sum_before<THREADS>(at < tiles ? counts[number * tiles + at] : 0, total);
    if (at < tiles) counts[number * tiles + at] = before + here;
    before += total;
  }
  if (threadIdx.x == 0) totals[number] = before;
}

// Writes the records of a tile where they go in the order of a digit: behind those of lesser digits in the row, and of the
// same digit that come before. THREADS is DIGITS: each thread finds where one digit begins.
template <int THREADS, int ITEMS> __device__ void move_tile(
    GLOBAL(unsigned long long) keys, GLOBAL(long long) places, long long from, long long to, long long start,
    long long count, int shift, GLOBAL(const int) counts, GLOBAL(const int) totals, long long row, long long tile,
    long long tiles) {
  SHARED(int, of_warps, THREADS / WARP * DIGITS);
  int ranks[ITEMS], total;
  count_digits<THREADS, ITEMS>(keys, from + start, count, shift, of_warps, [&](int i, int rank) { ranks[i] = rank; });
  const long long digit_place = row * DIGITS + threadIdx.x;
  int begin = sum_before<THREADS>(totals[digit_place], total) + counts[digit_place * tiles + tile];
  for (int warp = 0; warp < THREADS / WARP; ++warp) {
    const int counted = of_warps[warp * DIGITS + threadIdx.x];
    of_warps[warp * DIGITS + threadIdx.x] = begin;
    begin += counted;
  }
  __syncthreads();
  const int warp = threadIdx.x / WARP;
  #pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const long long at = (warp * ITEMS + i) * WARP + threadIdx.x % WARP;
    if (at < count) {
      const unsigned long long key = keys[from + start + at];
      const long long place = to + of_warps[warp * DIGITS + (int)(key >> shift & (DIGITS - 1))] + ranks[i];
      keys[place] = key;
      places[place] = places[from + start + at];
    }
  }
}

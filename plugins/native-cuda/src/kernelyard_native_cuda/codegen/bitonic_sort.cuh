// --- sorting ------------------------------------------------------------------------------------------------------------
// Unsigned integers in the order of values: a float's bits are in order but for the sign. Both zeros have one key, and all
// NaN have one, the greatest.
__device__ inline unsigned long long sort_key(float x) {
  const unsigned bits = (unsigned)__float_as_int(x == 0.0f ? 0.0f : x);
  return x != x ? 0xffffffffull : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline unsigned long long sort_key(double x) {
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x == 0.0 ? 0.0 : x);
  return x != x ? ~0ull : bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
}
template <class T> __device__ unsigned long long sort_key(T x) {
  return (T)-1 < (T)0 ? (unsigned long long)(long long)x ^ 1ull << 63 : (unsigned long long)x;
}

// Sorts records of a key and a place in shared memory by a bitonic network (Batcher, Sorting networks and their
// applications, 1968). TILE is a power of two. All threads must come here.
template <int TILE, int THREADS, class Keys, class Places> __device__ void sort_tile(Keys& keys, Places& places) {
  for (int size = 2; size <= TILE; size *= 2)
    for (int step = size / 2; step; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < TILE / 2; i += THREADS) {
        const int a = i / step * 2 * step + i % step, b = a + step;
        const unsigned long long key_a = keys[a], key_b = keys[b];
        const long long place_a = places[a], place_b = places[b];
        const bool is_behind = key_a > key_b || (key_a == key_b && place_a > place_b);
        if (is_behind != ((a & size) != 0)) keys[a] = key_b, keys[b] = key_a, places[a] = place_b, places[b] = place_a;
      }
    }
  __syncthreads();
}

// Merges the sorted runs of a row's tiles in pairs, until there is one; returns where that begins. Records lie from `first`
// on, and from `length` behind it, in turn; of a run, the first `wanted` are kept. All threads must come here.
template <int TILE, int THREADS> __device__ long long merged_runs(
    GLOBAL(unsigned long long) keys, GLOBAL(long long) places, long long first, long long length, long long wanted) {
  long long run = least<long long>(wanted, TILE), count = (length + TILE - 1) / TILE, from = first, to = first + length;
  long long last = least<long long>(run, length - (count - 1) * TILE);  // the length of the last run
  while (count > 1) {
    const long long longer = least<long long>(2 * run, wanted);
    for (long long i = threadIdx.x; i < (count - 1) * run + last; i += THREADS) {
      const long long own = i / run, other = own ^ 1, place = places[from + i];
      const unsigned long long key = keys[from + i];
      long long low = 0, high = other >= count ? 0 : other == count - 1 ? last : run;
      while (low < high) {  // how many of the other run come before
        const long long middle = (low + high) / 2, at = from + other * run + middle;
        const unsigned long long found = keys[at];
        if (found < key || (found == key && places[at] < place)) low = middle + 1;
        else high = middle;
      }
      const long long rank = i - own * run + low;
      if (rank < longer) {
        keys[to + own / 2 * longer + rank] = key;
        places[to + own / 2 * longer + rank] = place;
      }
    }
    __syncthreads();
    if (count % 2 == 0) last = least<long long>(run + last, longer);
    count = (count + 1) / 2, run = longer;
    const long long written = to;
    to = from, from = written;
  }
  return from;
}

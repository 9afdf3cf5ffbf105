// --- scans --------------------------------------------------------------------------------------------------------------
template <class T> __device__ T of_lane(T value, int lane) {
  if constexpr (sizeof(T) < 4) return (T)__shfl_sync(ALL_LANES, (int)value, lane);
  else return __shfl_sync(ALL_LANES, value, lane);
}
template <class T> __device__ T of_lane_below(T value, int by) {
  if constexpr (sizeof(T) < 4) return (T)__shfl_up_sync(ALL_LANES, (int)value, by);
  else return __shfl_up_sync(ALL_LANES, value, by);
}

// The values of a warp's lanes up to the own one combined, in order. All lanes must come here.
template <class Op, class T> __device__ T lanes_scanned(T value) {
  for (int by = 1; by < WARP; by *= 2) {
    const T below = of_lane_below(value, by);
    if ((int)threadIdx.x % WARP >= by) value = Op::of(below, value);
  }
  return value;
}

// The totals of a block's warps combined; `before` gets those of the warps before the own one. All threads must come here.
template <class Op, int THREADS, class T> __device__ T warps_scanned(T value, T& before, T neutral) {
  SHARED(T, of_warps, THREADS / WARP);
  if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = value;
  __syncthreads();
  T total = neutral;
  for (int warp = 0; warp < THREADS / WARP; ++warp) {
    if (warp == (int)threadIdx.x / WARP) before = total;
    total = Op::of(total, (T)of_warps[warp]);
  }
  return total;
}

// What a tile of a scan tells later ones: a value, then a mark. Reads do not come from a cache of the own multiprocessor.
template <class T> __device__ void publish(T* value, int* mark, T what, int how_far) {
  *(volatile T*)value = what;
  __threadfence();
  *(volatile int*)mark = how_far;
}
template <class T> __device__ T published(T* value, int* mark, int how_far) {
  while (*(volatile int*)mark < how_far) {}
  __threadfence();
  return *(volatile T*)value;
}

// The total of all tiles of a row before the own one, whose number in all rows, and in its row, is given: that up to the
// end of the group of 32 before, and those of the own group, always combined in the same order. All threads must come here.
template <class Op, class T> __device__ T total_before_tile(
    GLOBAL(int) marks, GLOBAL(T) totals, GLOBAL(T) prefixes, long long number, long long tile, T total, T neutral) {
  SHARED(T, found, 1);
  if (threadIdx.x < WARP) {
    const int lane = threadIdx.x, place = (int)(tile % WARP);
    const long long first = number - place;
    if (lane == 0) publish<T>(&totals[number], &marks[number + 1], total, 1);
    T value = lane < place ? published<T>(&totals[first + lane], &marks[first + lane + 1], 1) : neutral;
    value = of_lane(lanes_scanned<Op>(value), WARP - 1);
    if (tile >= WARP) value = Op::of(published<T>(&prefixes[first - 1], &marks[first], 2), value);
    if (lane == 0 && place == WARP - 1) publish<T>(&prefixes[number], &marks[number + 1], Op::of(value, total), 2);
    if (lane == 0) found[0] = value;
  }
  __syncthreads();
  return found[0];
}

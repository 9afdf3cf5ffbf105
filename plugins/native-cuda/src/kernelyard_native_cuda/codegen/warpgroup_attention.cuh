// Attention by warp groups: scores by wgmma from shared memory, their softmax in registers, and its numerators as the first
// factor of the second product. The products with the next keys run while the softmax of these is computed. It follows
// warpgroups.cuh.
// Source: J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision" (2024).

// Each consumer has 64 rows of queries, in `PARTS` of 64 elements. Tiles of keys and of values come to a ring of stages: keys
// before the values of the step before. Steps go from the last to the first: those that a mask may hide come first.
template <class Queries_, class Keys_, class Values_, int PARTS_, int CONSUMERS_, int STAGES_> struct WarpGroupAttention {
  typedef Queries_ Queries;
  typedef Keys_ Keys;
  typedef Values_ Values;
  typedef typename Keys::T T;
  static const int PARTS = PARTS_, CONSUMERS = CONSUMERS_, STAGES = STAGES_;
  static const int COLUMNS = Keys::OWN, WIDE = Values::OWN, STEPS = COLUMNS / 16;
  static const unsigned KEYS = PARTS * Keys::BYTES, VALUES = COLUMNS / 64 * Values::BYTES, STAGE = KEYS > VALUES ? KEYS : VALUES;
  static const unsigned QUERIES = STAGES * STAGE, BARRIERS = QUERIES + PARTS * Queries::BYTES;
  typedef Ring<1, 4 * CONSUMERS, BARRIERS> QueryRing;
  typedef Ring<STAGES, 4 * CONSUMERS, QueryRing::END> StageRing;
  typedef Slabs<(StageRing::END + 127) / 128 * 128> Results;
  struct At { QueryRing queries; StageRing stages; };
  // largest: before the factor. total: of what the thread has of a row, until the end.
  struct Sums { float weighted[WIDE / 2], largest[2], total[2]; };

  static __device__ void start() {
    if (threadIdx.x == 0) {
      QueryRing::start();
      StageRing::start();
      fence_async();
    }
    __syncthreads();
  }
  // The number of the thread's warp group, the same in all of it as far as the compiler knows. All lanes must come here.
  static __device__ int consumer() { return of_lane(consumer_warp() / 4, 0); }
  static __device__ int row_of(int row) { return consumer_warp() * 16 + row; }

  // copy_queries(base, full), copy_keys(base, full, step), copy_values(base, full, step): start the copies to a place, and have
  // them tell an mbarrier.
  template <class CopyQueries, class CopyKeys, class CopyValues>
  static __device__ void fill(At& at, int steps, CopyQueries copy_queries, CopyKeys copy_keys, CopyValues copy_values) {
    at.queries.expect(PARTS * Queries::BYTES);
    copy_queries(QUERIES, at.queries.full());
    at.queries.next();
    for (int step = steps; step >= 0; --step) {
      if (step > 0) fill_stage(at.stages, KEYS, copy_keys, step - 1);
      if (step < steps) fill_stage(at.stages, VALUES, copy_values, step);
    }
  }
  template <class Copy> static __device__ void fill_stage(StageRing& at, unsigned nbytes, Copy copy, int step) {
    at.expect(nbytes);
    copy(at.stage * STAGE, at.full(), step);
    at.next();
  }

  // score(product, half, column): the score of a product in one of the thread's two rows, where it sees the column: up to the
  // last, by its row. whole: the steps, from 0 on, all of whose columns are seen. factor: of scores, as powers of two.
  template <class Score>
  static __device__ void attend(Sums& all, At& at, int steps, int whole, const int (&last)[2], float factor, Score score) {
    float scores[COLUMNS / 2], scales[2];
    unsigned weights[STEPS][4];
    for (int half = 0; half < 2; ++half) all.largest[half] = __int_as_float(0xff800000), all.total[half] = 0.0f;
    at.queries.wait();
    at.stages.wait();
    multiply_queries(scores, at.stages.stage * STAGE);
    wgmma_wait<0>();
    wgmma_settle(scores);
    at.stages.release();
    at.stages.next();
    int step = steps - 1;
    if (step < whole) weigh<true>(all, scales, scores, step, last, factor, score);
    else weigh<false>(all, scales, scores, step, last, factor, score);
    pack(weights, scores);
    for (; step > whole; --step) advance<false>(all, scores, weights, at, step, step + 1 < steps, last, factor, score);
    for (; step > 0; --step) advance<true>(all, scores, weights, at, step, step + 1 < steps, last, factor, score);
    at.queries.release();
    at.queries.next();
    at.stages.wait();
    multiply_values(all, weights, at.stages.stage * STAGE, steps > 1);
    wgmma_wait<0>();
    wgmma_settle(all.weighted);
    at.stages.release();
    at.stages.next();
    for (int half = 0; half < 2; ++half) all.total[half] = lanes_reduced<Sum, 4>(all.total[half]);
  }
  // Adds the values of a step, and makes the weights of the next, whose products run at the same time.
  template <bool IS_WHOLE, class Score>
  static __device__ void advance(Sums& all, float (&scores)[COLUMNS / 2], unsigned (&weights)[STEPS][4], At& at, int step,
                                 bool adds, const int (&last)[2], float factor, Score score) {
    float scales[2];
    const StageRing keys = at.stages;
    at.stages.next();
    const StageRing values = at.stages;
    at.stages.next();
    keys.wait();
    multiply_queries(scores, keys.stage * STAGE);
    values.wait();
    multiply_values(all, weights, values.stage * STAGE, adds);
    wgmma_wait<1>();
    wgmma_settle(scores);
    keys.release();
    weigh<IS_WHOLE>(all, scales, scores, step - 1, last, factor, score);
    wgmma_wait<0>();
    wgmma_settle(all.weighted);
    settle(weights);
    values.release();
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) all.weighted[i] *= scales[i / 2 % 2];
    pack(weights, scores);
  }
  static __device__ void multiply_queries(float (&scores)[COLUMNS / 2], unsigned keys) {
    const int row = consumer() * 64;
    wgmma_settle(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < PARTS * 4; ++k)
      wgmma<T, COLUMNS, Queries::ALONG_SUM, Keys::ALONG_SUM>(scores, Queries::matrix(QUERIES + k / 4 * Queries::BYTES, row, k % 4),
                                                             Keys::matrix(keys + k / 4 * Keys::BYTES, 0, k % 4), k > 0);
    wgmma_commit();
  }
  static __device__ void multiply_values(Sums& all, unsigned (&weights)[STEPS][4], unsigned values, bool adds) {
    wgmma_settle(all.weighted);
    settle(weights);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
      wgmma<T, WIDE, Values::ALONG_SUM>(all.weighted, weights[k], Values::matrix(values + k / 4 * Values::BYTES, 0, k % 4),
                                        adds || k > 0);
    wgmma_commit();
  }
  static __device__ void settle(unsigned (&weights)[STEPS][4]) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k) wgmma_settle(weights[k]);
  }
  // Makes the numerators of products of a step, and what sums of the steps before are to be scaled by.
  template <bool IS_WHOLE, class Score>
  static __device__ void weigh(Sums& all, float (&scales)[2], float (&scores)[COLUMNS / 2], int step, const int (&last)[2],
                               float factor, Score score) {
    const int first = step * COLUMNS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) {
      const int half = i / 2 % 2, column = first + i / 4 * 8 + i % 2;
      scores[i] = IS_WHOLE || column <= last[half] ? score(scores[i], half, column) : __int_as_float(0xff800000);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = all.largest[half], total = 0.0f;
#pragma unroll
      for (int i = half * 2; i < COLUMNS / 2; i += i % 2 ? 3 : 1) largest = fmaxf(largest, scores[i]);  // no NaN: see the total
      largest = lanes_reduced<Larger, 4>(largest);
      const float shift = largest == __int_as_float(0xff800000) ? 0.0f : largest * factor;  // nothing to see yet
      scales[half] = power_of_two(all.largest[half] * factor - shift);
#pragma unroll
      for (int i = half * 2; i < COLUMNS / 2; i += i % 2 ? 3 : 1) total += scores[i] = power_of_two(scores[i] * factor - shift);
      all.total[half] = all.total[half] * scales[half] + total;
      all.largest[half] = largest;
    }
  }
  static __device__ void pack(unsigned (&weights)[STEPS][4], const float (&scores)[COLUMNS / 2]) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[k][i] = narrow_pair<T>(scores[k * 8 + i * 2], scores[k * 8 + i * 2 + 1]);
  }
  // What a thread has of the row of a slab: of those of the thread's own rows, by half.
  static __device__ float of_row(const float (&own)[2], int row) {
    const float low = of_lane(own[0], row % 8 * 4), high = of_lane(own[1], row % 8 * 4);
    return row < 8 ? low : high;
  }
};

// What kernels that multiply tile by tile use: dynamic shared memory, asynchronous copies, tensor cores, and two kinds of
// tiles. It follows prelude.cuh. Places are byte offsets in dynamic shared memory.
#ifdef KERNELYARD_EMULATION
#include "emulated_tensor_cores.h"
#else
extern __shared__ __align__(1024) unsigned char dynamic_shared[];
__device__ inline unsigned shared_address(unsigned place) {
  return (unsigned)__cvta_generic_to_shared(dynamic_shared) + place;
}
template <class T> __device__ T shared_at(unsigned place) { return *(const T*)(dynamic_shared + place); }
template <class T> __device__ void put_shared(unsigned place, T value) { *(T*)(dynamic_shared + place) = value; }

template <int BYTES, class T> __device__ void cp_async(unsigned place, const T* p, long long i, bool inside) {
  const unsigned to = shared_address(place), size = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p + i), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(p + i), "r"(size), "n"(BYTES) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

template <bool TRANSPOSED> __device__ void ldmatrix(unsigned (&to)[4], unsigned place) {
  const unsigned from = shared_address(place);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// total += a * b for 16 rows, 8 columns and 32 bytes of the sum.
template <class T, class Total> __device__ void mma(Total (&total)[4], const unsigned (&a)[4], const unsigned* b);
#define MMA(T, Total, kind, mark)                                                                                  \
  template <> __device__ inline void mma<T, Total>(Total (&total)[4], const unsigned (&a)[4], const unsigned* b) { \
    asm("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                \
        : "+" mark(total[0]), "+" mark(total[1]), "+" mark(total[2]), "+" mark(total[3])                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
  }
MMA(Half, float, "m16n8k16.row.col.f32.f16.f16.f32", "f")
MMA(BFloat, float, "m16n8k16.row.col.f32.bf16.bf16.f32", "f")
MMA(float, float, "m16n8k8.row.col.f32.tf32.tf32.f32", "f")
MMA(signed char, int, "m16n8k32.row.col.s32.s8.s8.s32", "r")
#undef MMA
__device__ inline unsigned as_tf32(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__int_as_float(bits)));
  return rounded;
}
#endif

// `N` neighbours of four bytes each; of eight, some threads read the second half first: from other banks.
template <int N, class T> __device__ Pack<T, N> slab_pack(unsigned place) {
  const int FEW = N < 4 ? N : 4;
  const int turn = N == 8 ? threadIdx.x / 4 % 2 : 0;
  const auto one = shared_at<Pack<T, FEW>>(place + turn * 16);
  if constexpr (N <= 4) return one;
  const auto other = shared_at<Pack<T, FEW>>(place + (1 - turn) * 16);
  Pack<T, N> all;
#pragma unroll
  for (int lane = 0; lane < N; ++lane) all.at[lane] = (lane < 4) == (turn == 0) ? one.at[lane % 4] : other.at[lane % 4];
  return all;
}
#ifdef KERNELYARD_EMULATION
template <class T> static unsigned narrow_pair(float first, float second) {
  return Stored<T>::of(first).bits | (unsigned)Stored<T>::of(second).bits << 16;
}
#else
template <class T> __device__ unsigned narrow_pair(float first, float second);
#define NARROW_PAIR(T, kind)                                                           \
  template <> __device__ inline unsigned narrow_pair<T>(float first, float second) { \
    unsigned bits;                                                                     \
    asm("cvt.rn." kind ".f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));    \
    return bits;                                                                       \
  }
NARROW_PAIR(Half, "f16x2")
NARROW_PAIR(BFloat, "bf16x2")
#undef NARROW_PAIR
#endif
template <class T> struct IsFloat { static const bool value = false; };
template <> struct IsFloat<float> { static const bool value = true; };
template <class T> struct TotalOf { typedef float type; };
template <> struct TotalOf<signed char> { typedef int type; };

// A sum in steps: what a step needs is on its way `STAGES - 1` steps before. fill(stage, step) starts the copies of a step,
// multiply(stage, step) uses them. Afterwards the memory of all stages is free.
template <int STAGES, class Fill, class Multiply>
__device__ void in_stages(long long steps, Fill fill, Multiply multiply) {
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < steps) fill(step, step);
    cp_async_commit();
  }
  int now = 0, free = STAGES - 1;
  for (long long step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < steps) fill(free, step + STAGES - 1);
    cp_async_commit();
    multiply(now, step);
    free = now;
    now = now + 1 == STAGES ? 0 : now + 1;
  }
  cp_async_wait<0>();
  __syncthreads();
}

// --- tensor cores -----------------------------------------------------------------------------------------------------
// `OWN` rows of an operand, `DEPTH` elements of the sum each. Lines run along the sum, or along the rows, in pieces of 16
// bytes, swizzled by an xor with the line, so that the pieces of eight lines at one place lie in different banks.
template <class Type, int OWN_, int DEPTH_, bool ALONG_SUM_> struct SwizzledTile {
  typedef Type T;
  static const int OWN = OWN_, DEPTH = DEPTH_;
  static const bool ALONG_SUM = ALONG_SUM_;
  static const int LINE = ALONG_SUM ? DEPTH : OWN, PER_PIECE = 16 / sizeof(T), PIECES = LINE / PER_PIECE;
  static const unsigned BYTES = OWN * DEPTH * sizeof(T);
  static __device__ unsigned piece(int line, int piece) {
    const int swizzle = PIECES >= 8 ? line & 7 : line / (8 / PIECES) & (PIECES - 1);
    return (line * PIECES + (piece ^ swizzle)) * 16;
  }
  static __device__ unsigned place(int own, int k) {
    const int line = ALONG_SUM ? own : k, at = ALONG_SUM ? k : own;
    return piece(line, at / PER_PIECE) + at % PER_PIECE * sizeof(T);
  }
  // Four 8x8 matrices (of two-byte elements, or what takes as much room): 16 rows from `own` on, 32 bytes of the sum.
  // FIRST_SUM: the second matrix is the next along the sum, as mma takes b; else the next rows, as it takes a.
  template <bool FIRST_SUM> static __device__ void matrices(unsigned (&to)[4], unsigned base, int own, int step) {
    const int lane = threadIdx.x % WARP, eight = lane / 8 % 2, sixteen = lane / 16;
    const int along_own = FIRST_SUM ? sixteen : eight, along_sum = FIRST_SUM ? eight : sixteen;
    if constexpr (ALONG_SUM) {
      ldmatrix<false>(to, base + piece(own + lane % 8 + along_own * 8, step * 2 + along_sum));
      if constexpr (IsFloat<T>::value)
        for (int i = 0; i < 4; ++i) to[i] = as_tf32(to[i]);
    } else {
      ldmatrix<true>(to, base + piece(step * 16 + lane % 8 + along_sum * 8, own / 8 + along_own));
    }
  }
};

// WARPS_A by WARPS_B warps, each with an equal part of the tile.
template <class A_, class B_, int WARPS_A, int WARPS_B> struct TensorTile {
  typedef A_ A;
  typedef B_ B;
  typedef typename A::T T;
  typedef typename TotalOf<T>::type Element;
  static const int ROWS = A::OWN / WARPS_A, COLUMNS = B::OWN / WARPS_B, STEPS = A::DEPTH * sizeof(T) / 32;
  static const int DOWN = ROWS / 16, ACROSS = COLUMNS / 8;
  static const unsigned STAGE = A::BYTES + B::BYTES;
  typedef Element Total[DOWN][ACROSS][4];

  struct Factors { unsigned a[DOWN][4], b[ACROSS / 2][4]; };
  static __device__ void load(Factors& to, unsigned base, int step) {
    const int warp = threadIdx.x / WARP, row = warp / WARPS_B * ROWS, column = warp % WARPS_B * COLUMNS;
#pragma unroll
    for (int i = 0; i < DOWN; ++i) A::template matrices<false>(to.a[i], base, row + i * 16, step);
#pragma unroll
    for (int j = 0; j < ACROSS / 2; ++j) B::template matrices<true>(to.b[j], base + A::BYTES, column + j * 16, step);
  }
  static __device__ void multiply(Total& total, unsigned base) {
    Factors factors[2];
    load(factors[0], base, 0);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + 1 < STEPS) load(factors[(step + 1) % 2], base, step + 1);
      const Factors& now = factors[step % 2];
#pragma unroll
      for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) mma<T>(total[i][j], now.a[i], now.b[j / 2] + j % 2 * 2);
    }
  }
  // A slab is 16 rows of each row of warps, in shared memory, for what follows the sum.
  static const int SLAB_ROWS = WARPS_A * 16, SLAB_LINE = B::OWN + 8;
  static const unsigned SLAB_BYTES = SLAB_ROWS * SLAB_LINE * sizeof(Element);
  static __device__ int row_of(int slab, int row) { return row / 16 * ROWS + slab * 16 + row % 16; }
  static __device__ void put_slab(const Element (&slab)[ACROSS][4]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = warp / WARPS_B * 16 + lane / 4, column = warp % WARPS_B * COLUMNS + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < ACROSS; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_shared((unsigned)((row + half * 8) * SLAB_LINE + column + j * 8) * (unsigned)sizeof(Element),
                   Pack<Element, 2>{{slab[j][half * 2], slab[j][half * 2 + 1]}});
  }
  template <int N> static __device__ Pack<Element, N> slab_at(int row, int column) {
    return slab_pack<N, Element>((unsigned)(row * SLAB_LINE + column) * (unsigned)sizeof(Element));
  }
};

struct Larger { static __device__ float of(float a, float b) { return fmaxf(a, b); } };

// Attention: each warp has 16 rows of queries, and goes through keys and values tile by tile. What was summed up is scaled
// down whenever a larger score comes, so that no score is stored.
template <class Queries_, class Keys_, class Values_, int WARPS> struct AttentionTile {
  typedef Queries_ Queries;
  typedef Keys_ Keys;
  typedef Values_ Values;
  typedef typename Keys::T T;
  static const int COLUMNS = Keys::OWN, STEPS = Keys::DEPTH / 16, ACROSS = COLUMNS / 8, WIDE = Values::OWN / 8;
  static const unsigned STAGE = Keys::BYTES + Values::BYTES;
  struct Total { float weighted[WIDE][4], largest[2], total[2]; };

  static __device__ void start(Total& all) {
#pragma unroll
    for (int j = 0; j < WIDE; ++j)
      for (int i = 0; i < 4; ++i) all.weighted[j][i] = 0.0f;
    for (int half = 0; half < 2; ++half) all.largest[half] = __int_as_float(0xff800000), all.total[half] = 0.0f;
  }
  // score(product, row, column): the score of a product of a query and a key, by their numbers in the tile; whole: the same
  // where every query of the tile is there, and sees every key of it.
  template <class Score, class Whole>
  static __device__ void step(Total& all, unsigned queries, unsigned base, Score score, Whole whole, bool is_whole) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float scores[ACROSS][4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      unsigned a[4];
      Queries::template matrices<false>(a, queries, warp * 16, k);
#pragma unroll
      for (int j = 0; j < ACROSS; j += 2) {
        unsigned b[4];
        Keys::template matrices<true>(b, base, j * 8, k);
        mma<T>(scores[j], a, b);
        mma<T>(scores[j + 1], a, b + 2);
      }
    }
    if (is_whole) finish(scores, whole);
    else finish(scores, score);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = all.largest[half], total = 0.0f;
#pragma unroll
      for (int j = 0; j < ACROSS; ++j)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i)
          largest = fmaxf(largest, scores[j][i]);  // what is no number shows in the total
      largest = lanes_reduced<Larger, 4>(largest);
      const float shift = largest == __int_as_float(0xff800000) ? 0.0f : largest;  // nothing to see yet
      const float log2_shift = shift * LOG2_E;  // e to the x - shift is 2 to the x * log2(e) - shift * log2(e)
      const float scale = power_of_two(all.largest[half] * LOG2_E - log2_shift);
#pragma unroll
      for (int j = 0; j < ACROSS; ++j)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) total += scores[j][i] = power_of_two(scores[j][i] * LOG2_E - log2_shift);
      all.total[half] = all.total[half] * scale + lanes_reduced<Sum, 4>(total);
      all.largest[half] = largest;
#pragma unroll
      for (int j = 0; j < WIDE; ++j)
        for (int i = half * 2; i < half * 2 + 2; ++i) all.weighted[j][i] *= scale;
    }
#pragma unroll
    for (int k = 0; k < ACROSS / 2; ++k) {
      unsigned a[4];
      for (int i = 0; i < 4; ++i) a[i] = both(scores[k * 2 + i / 2][i % 2 * 2], scores[k * 2 + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int j = 0; j < WIDE; j += 2) {
        unsigned b[4];
        Values::template matrices<true>(b, base + Keys::BYTES, j * 8, k);
        mma<T>(all.weighted[j], a, b);
        mma<T>(all.weighted[j + 1], a, b + 2);
      }
    }
  }
  template <class Score> static __device__ void finish(float (&scores)[ACROSS][4], Score score) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < ACROSS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[j][i] = score(scores[j][i], warp * 16 + lane / 4 + i / 2 * 8, j * 8 + lane % 4 * 2 + i % 2);
  }
  static __device__ unsigned both(float first, float second) {
    return narrow_pair<T>(first, second);
  }
};

// --- CUDA cores -------------------------------------------------------------------------------------------------------
// Lines run along the rows, with a gap behind each: a warp that writes across lines meets few banks twice.
template <class Type, int OWN_, int DEPTH_> struct PlainTile {
  typedef Type T;
  static const int OWN = OWN_, DEPTH = DEPTH_, LINE = OWN + 16 / sizeof(T);
  static const unsigned BYTES = LINE * DEPTH * sizeof(T);
  static __device__ unsigned place(int own, int k) { return (k * LINE + own) * sizeof(T); }
};

template <class T> __device__ T multiplied_on(T total, T a, T b) {
  if constexpr (T(0.5) != T(0)) return total + a * b;
  else return (T)((unsigned long long)total + (unsigned long long)a * (unsigned long long)b);
}

// Each thread has EACH_A by EACH_B elements, in packs of neighbours.
template <class A_, class B_, int EACH_A, int EACH_B> struct PlainTiles {
  typedef A_ A;
  typedef B_ B;
  typedef typename A::T T;
  static const int LANES_A = A::OWN / EACH_A, LANES_B = B::OWN / EACH_B;
  static const int MOST = 16 / sizeof(T), PACK_A = EACH_A < MOST ? EACH_A : MOST, PACK_B = EACH_B < MOST ? EACH_B : MOST;
  static const unsigned STAGE = A::BYTES + B::BYTES;
  typedef T Total[EACH_A][EACH_B];

  static __device__ int row_of(int i) { return (i / PACK_A * LANES_A + threadIdx.x / LANES_B) * PACK_A + i % PACK_A; }
  static __device__ int column_of(int j) { return (j / PACK_B * LANES_B + threadIdx.x % LANES_B) * PACK_B + j % PACK_B; }
  static __device__ void multiply(Total& total, unsigned base) {
#pragma unroll
    for (int k = 0; k < A::DEPTH; ++k) {
      T a[EACH_A], b[EACH_B];
#pragma unroll
      for (int i = 0; i < EACH_A; i += PACK_A) {
        const auto pack = shared_at<Pack<T, PACK_A>>(base + A::place(row_of(i), k));
        for (int lane = 0; lane < PACK_A; ++lane) a[i + lane] = pack.at[lane];
      }
#pragma unroll
      for (int j = 0; j < EACH_B; j += PACK_B) {
        const auto pack = shared_at<Pack<T, PACK_B>>(base + A::BYTES + B::place(column_of(j), k));
        for (int lane = 0; lane < PACK_B; ++lane) b[j + lane] = pack.at[lane];
      }
#pragma unroll
      for (int i = 0; i < EACH_A; ++i)
#pragma unroll
        for (int j = 0; j < EACH_B; ++j) total[i][j] = multiplied_on(total[i][j], a[i], b[j]);
    }
  }
};

// What kernels for sm_90a use: mbarriers, bulk copies of tensors (TMA), products by warp groups of 128 threads (wgmma), and a
// tile of them that is fed by a thread of its own. It follows tiles.cuh. Places are byte offsets in dynamic shared memory.
// Source: PTX ISA 8.8, "mbarrier", "cp.async.bulk.tensor", "Asynchronous warpgroup level matrix instructions".
#ifdef KERNELYARD_EMULATION
#include "emulated_bulk_copies.h"
#include "emulated_wgmma.h"
#else
struct alignas(64) TensorMap { unsigned char opaque[128]; };

__device__ inline void mbarrier_init(unsigned place, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(place)), "r"(arrivals) : "memory");
}
// Lets asynchronous copies and wgmma see what this thread did to shared memory.
__device__ inline void fence_async() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ inline void mbarrier_arrive(unsigned place) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(place)) : "memory");
}
__device__ inline void mbarrier_expect(unsigned place, unsigned nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(place)), "r"(nbytes) : "memory");
}
__device__ inline void mbarrier_wait(unsigned place, unsigned parity) {
  asm volatile(
      "{\n.reg .pred is_over;\nask:\nmbarrier.try_wait.parity.shared::cta.b64 is_over, [%0], %1;\n@!is_over bra ask;\n}"
      ::"r"(shared_address(place)), "r"(parity) : "memory");
}
#define BULK_COPY(RANK, form, coordinates, ...)                                                                             \
  __device__ inline void bulk_copy(unsigned place, const TensorMap& map, unsigned barrier, const int (&at)[RANK]) {         \
    asm volatile("cp.async.bulk.tensor." form ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates \
                 "}], [%2];" ::"r"(shared_address(place)), "l"(&map), "r"(shared_address(barrier)), __VA_ARGS__ : "memory"); \
  }
BULK_COPY(2, "2d", "%3, %4", "r"(at[0]), "r"(at[1]))
BULK_COPY(3, "3d", "%3, %4, %5", "r"(at[0]), "r"(at[1]), "r"(at[2]))
BULK_COPY(4, "4d", "%3, %4, %5, %6", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
BULK_COPY(5, "5d", "%3, %4, %5, %6, %7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
#undef BULK_COPY

// A matrix in lines of 128 bytes, eight of which are swizzled together. leading, stride: bytes from eight lines to the next,
// along rows and along the sum, in the order that the layout has.
__device__ inline unsigned long long wgmma_descriptor(unsigned place, unsigned leading, unsigned stride) {
  return (shared_address(place) & 0x3ffffu) >> 4 | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
template <int N> __device__ void wgmma_settle(float (&totals)[N]) {  // what reads the totals stays behind the wait
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(totals[i])::"memory");
}
template <int N> __device__ void wgmma_settle(unsigned (&factors)[N]) {  // what writes the factors stays behind the wait
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(factors[i])::"memory");
}
template <class T, int N, bool A_ALONG, bool B_ALONG>
__device__ void wgmma(float (&totals)[N / 2], unsigned long long a, unsigned long long b, bool adds);
// The same where each thread has its elements of a, as mma takes them: pairs of its two rows, at two places of the sum.
template <class T, int N, bool B_ALONG>
__device__ void wgmma(float (&totals)[N / 2], const unsigned (&a)[4], unsigned long long b, bool adds);
template <int MOST> __device__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MOST)); }
template <int MOST> __device__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(MOST)); }
#endif

// `OWN` rows of an operand and 64 elements of the sum, of two bytes each, as bulk copies bring them: lines of 128 bytes along
// the sum, or along the rows, in blocks of 64 rows then.
template <class Type, int OWN_, bool ALONG_SUM_> struct BulkTile {
  typedef Type T;
  static const int OWN = OWN_, DEPTH = 64, COPIES = ALONG_SUM_ ? 1 : OWN / 64;
  static const bool ALONG_SUM = ALONG_SUM_;
  static const unsigned BYTES = OWN * DEPTH * 2, BLOCK = 64 * 128;
  // copy(place, rows): starts the copy of a box, so many rows after the tile's first.
  template <class Copy> static __device__ void each_copy(unsigned base, Copy copy) {
#pragma unroll
    for (int n = 0; n < COPIES; ++n) copy(base + n * BLOCK, n * 64);
  }
  // The descriptor from a row on, a multiple of 64, at 16 elements of the sum.
  static __device__ unsigned long long matrix(unsigned base, int row, int step) {
    const unsigned long long at_first =
        ALONG_SUM ? wgmma_descriptor(base + row * 128, 16, 1024) : wgmma_descriptor(base + row / 64 * BLOCK, BLOCK, 1024);
    return at_first + step * (ALONG_SUM ? 32 : 2048) / 16;  // the first field is the place, in pieces of 16 bytes
  }
};

// A ring of stages, for who fills it and for who empties it: two mbarriers for each, from `BARRIERS` on, say when it is full,
// and when as many warps as read it are done with it.
template <int STAGES, int WARPS, unsigned BARRIERS> struct Ring {
  static const unsigned FULL = BARRIERS, EMPTY = FULL + 8 * STAGES, END = EMPTY + 8 * STAGES;
  int stage = 0;
  unsigned parity = 0;
  static __device__ void start() {  // by one thread
    for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(FULL + 8 * stage, 1), mbarrier_init(EMPTY + 8 * stage, WARPS);
  }
  __device__ unsigned full() const { return FULL + 8 * stage; }
  __device__ void expect(unsigned nbytes) const {
    mbarrier_wait(EMPTY + 8 * stage, parity ^ 1);  // the first time around, it is
    mbarrier_expect(FULL + 8 * stage, nbytes);
  }
  __device__ void wait() const { mbarrier_wait(FULL + 8 * stage, parity); }
  __device__ void release() const {
    if (threadIdx.x % WARP == 0) mbarrier_arrive(EMPTY + 8 * stage);
  }
  __device__ void next() {
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

// What is the same in all kernels by warp groups: the first of them starts copies, the others consume what these bring.
const int GROUP = 128;
__device__ inline bool is_producer() { return threadIdx.x < GROUP; }
__device__ inline int consumer_warp() { return (threadIdx.x - GROUP) / WARP; }

// A slab is 16 rows and 64 columns of a consumer's warp's own, in shared memory from `BASE` on, for what follows the sum:
// pieces of 32 bytes are swizzled by an xor with the row.
template <unsigned BASE> struct Slabs {
  static const int COLUMNS = 64;
  static const unsigned BYTES = 16 * COLUMNS * sizeof(float);
  static __device__ unsigned place(int row, int column) {
    return BASE + consumer_warp() * BYTES + (row * COLUMNS + (column ^ (row & 7) * 8)) * (unsigned)sizeof(float);
  }
  template <int N> static __device__ void put(const float (&total)[N], int across) {
    const int lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = across * (COLUMNS / 2) + j * 4 + half * 2;
        put_shared(place(lane / 4 + half * 8, j * 8 + lane % 4 * 2), Pack<float, 2>{{total[i], total[i + 1]}});
      }
    __syncwarp();
  }
  template <int N> static __device__ Pack<float, N> at(int row, int column) {
    return slab_pack<N, float>(place(row, column));
  }
};

// A tile of `CONSUMERS` warp groups, each with `A::OWN / CONSUMERS` rows of it. A warp group in front of them fills the
// stages: one thread of it starts bulk copies when a stage is empty, ahead of the consumers, and on to the next tile while
// they finish one.
template <class A_, class B_, int CONSUMERS_, int STAGES_> struct WarpGroupTile {
  typedef A_ A;
  typedef B_ B;
  typedef typename A::T T;
  static const int CONSUMERS = CONSUMERS_, STAGES = STAGES_;
  static const int ROWS = A::OWN / CONSUMERS, DOWN = ROWS / 64, COLUMNS = B::OWN, STEPS = A::DEPTH / 16;
  static const unsigned STAGE = A::BYTES + B::BYTES;
  typedef float Total[DOWN][COLUMNS / 2];
  typedef Ring<STAGES, 4 * CONSUMERS, STAGES * STAGE> At;
  typedef Slabs<(At::END + 127) / 128 * 128> Results;
  static const int SLABS_ACROSS = COLUMNS / Results::COLUMNS;

  static __device__ void start() {
    if (threadIdx.x == 0) {
      At::start();
      fence_async();
    }
    __syncthreads();
  }
  // copies(base, full, step): starts the copies of a step to a place, and has them tell an mbarrier.
  template <class Copies> static __device__ void fill(At& at, int steps, Copies copies) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      at.expect(STAGE);
      copies(at.stage * STAGE, at.full(), step);
      at.next();
    }
  }
  // The sums of a step are waited for in the next one, whose products are issued by then.
  static __device__ void multiply(Total& total, At& at, int steps) {
    const int first = consumer_warp() / 4 * ROWS;
    At last = at;
    for (int step = 0; step < steps; ++step) {
      at.wait();
      const unsigned base = at.stage * STAGE;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < STEPS; ++k)
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
          wgmma<T, COLUMNS, A::ALONG_SUM, B::ALONG_SUM>(total[i], A::matrix(base, first + i * 64, k),
                                                        B::matrix(base + A::BYTES, 0, k), step > 0 || k > 0);
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        last.release();
      }
      last = at;
      at.next();
    }
    wgmma_wait<0>();
    last.release();
#pragma unroll
    for (int i = 0; i < DOWN; ++i) wgmma_settle(total[i]);
  }
  static __device__ int row_of(int down, int row) { return consumer_warp() / 4 * ROWS + down * 64 + consumer_warp() % 4 * 16 + row; }
};

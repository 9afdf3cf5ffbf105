// ldmatrix and mma.sync on the CPU: all lanes of a warp meet, and each computes what the hardware would give it.
// Included by the prelude's text, behind its element types.
#pragma once

namespace emulation {
struct Registers { unsigned a[4], b[2]; };
static Registers registers[MOST_THREADS];
static unsigned rows[MOST_THREADS];

static float half_values[1 << 16];
static bool has_half_values;
static void fill_half_values() {
  for (unsigned bits = 0; !has_half_values && bits < 1u << 16; ++bits) half_values[bits] = value_of(Half{(unsigned short)bits});
  has_half_values = true;
}

static inline unsigned warp_start() { return (unsigned)(current - threads) & ~(WARP_THREADS - 1); }
template <class T> struct Lanes {  // the elements of a register
  static const int COUNT = 4 / sizeof(T);
  static T at(unsigned bits, int i) {
    T value;
    memcpy(&value, (const char*)&bits + i * sizeof(T), sizeof(T));
    return value;
  }
};
static inline float factor(Half x) { return half_values[x.bits]; }
static inline float factor(BFloat x) { return value_of(x); }
static inline int factor(signed char x) { return x; }
static inline float factor(float x) {
  if (emulation_bits<unsigned>(x) & 0x1fffu) fail("a factor of a product in tf32 that is not rounded to it", 0, 0);
  return x;
}
}  // namespace emulation

template <bool TRANSPOSED> static void ldmatrix(unsigned (&to)[4], unsigned place) {
  const unsigned first = emulation::warp_start(), lane = emulation_lane();
  emulation::rows[emulation::current - emulation::threads] = place;
  emulation::touch(place, 16);
  emulation_meet(0xffffffffu);
  for (int i = 0; i < 4; ++i) {
    if (!TRANSPOSED) {
      emulation::read_bytes(&to[i], emulation::rows[first + i * 8 + lane / 4] + lane % 4 * 4, 4);
    } else {
      unsigned short two[2];
      for (int k = 0; k < 2; ++k)
        emulation::read_bytes(&two[k], emulation::rows[first + i * 8 + lane % 4 * 2 + k] + lane / 4 * 2, 2);
      to[i] = two[0] | (unsigned)two[1] << 16;
    }
  }
  emulation_meet(0xffffffffu);
}

// total += a * b for 16 rows, 8 columns and 32 bytes of the sum.
template <class T, class Total> static void mma(Total (&total)[4], const unsigned (&a)[4], const unsigned* b) {
  typedef emulation::Lanes<T> Lanes;
  emulation::fill_half_values();
  emulation::Registers& own = emulation::registers[emulation::current - emulation::threads];
  memcpy(own.a, a, sizeof own.a), memcpy(own.b, b, sizeof own.b);
  emulation_meet(0xffffffffu);
  const emulation::Registers* warp = emulation::registers + emulation::warp_start();
  const int lane = emulation_lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int half = 0; half < 2; ++half)
      for (int four = 0; four < 4; ++four)
        for (int k = 0; k < Lanes::COUNT; ++k)
          total[i] += emulation::factor(Lanes::at(warp[row * 4 + four].a[i / 2 + half * 2], k)) *
                      emulation::factor(Lanes::at(warp[column * 4 + four].b[half], k));
  }
  emulation_meet(0xffffffffu);
}
static inline unsigned as_tf32(unsigned bits) { return (bits + 0x1000u) & ~0x1fffu; }  // to nearest, halves away

// What generated kernels use. The same text is compiled for GPUs, and for the emulator, whose header defines
// KERNELYARD_EMULATION and its own of what is between the next #ifndef and #endif.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
#ifndef KERNELYARD_EMULATION
#define GLOBAL(T) T* __restrict__
#define SHARED(T, name, count) __shared__ T name[count]
// In words as wide as they can be: a structure of two-byte elements would be read and written four bytes at a time.
template <int BYTES> struct Word { typedef unsigned char type; };
template <> struct Word<2> { typedef unsigned short type; };
template <> struct Word<4> { typedef unsigned type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };
template <int N, class T> __device__ Pack<T, N> pack_at(const T* p, long long i) {
  const int BYTES = sizeof(T) * N, EACH = BYTES < 16 ? BYTES : 16;
  typedef typename Word<EACH>::type W;
  Pack<T, N> all;
#pragma unroll
  for (int n = 0; n < BYTES / EACH; ++n) {
    const W word = ((const W*)(p + i))[n];
    memcpy((char*)&all + n * EACH, &word, EACH);
  }
  return all;
}
// The compiler would take some of these stores apart again.
__device__ inline void put_word(uint4* p, uint4 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory");
}
__device__ inline void put_word(uint2* p, uint2 w) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w.x), "r"(w.y) : "memory");
}
template <class W> __device__ void put_word(W* p, W word) { *p = word; }
template <int N, class T> __device__ void put_pack(T* p, long long i, const Pack<T, N>& all) {
  const int BYTES = sizeof(T) * N, EACH = BYTES < 16 ? BYTES : 16;
  typedef typename Word<EACH>::type W;
#pragma unroll
  for (int n = 0; n < BYTES / EACH; ++n) {
    W word;
    memcpy(&word, (const char*)&all + n * EACH, EACH);
    put_word((W*)(p + i) + n, word);
  }
}
#endif
#define WARP 32
#define ALL_LANES 0xffffffffu

// --- element types that are stored narrow and computed as float -------------------------------------------------------
struct Half { unsigned short bits; };
struct BFloat { unsigned short bits; };
struct E4M3 { unsigned char bits; };
struct E5M2 { unsigned char bits; };

// A float of `mantissa` bits and this bias, from its bits.
__device__ inline float widened(unsigned bits, int mantissa, int exponent_bits, int bias, bool has_infinity) {
  const unsigned sign = bits >> (mantissa + exponent_bits) & 1u, most = (1u << exponent_bits) - 1;
  const unsigned exponent = bits >> mantissa & most, fraction = bits & ((1u << mantissa) - 1);
  float value;
  if (has_infinity && exponent == most) value = __int_as_float(fraction ? 0x7fc00000 : 0x7f800000);
  else if (!has_infinity && exponent == most && fraction == (1u << mantissa) - 1) value = __int_as_float(0x7fc00000);
  else if (exponent == 0) value = ldexpf((float)fraction, 1 - bias - mantissa);
  else value = ldexpf((float)(fraction | 1u << mantissa), (int)exponent - bias - mantissa);
  return sign ? -value : value;
}

// To nearest, halves to even; what is too large becomes infinite, or no number where there is no infinity.
__device__ inline unsigned narrowed(float value, int mantissa, int exponent_bits, int bias, bool has_infinity) {
  const unsigned sign = (unsigned)__float_as_int(value) >> 31 << (mantissa + exponent_bits);
  const unsigned most = (1u << exponent_bits) - 1, infinity = most << mantissa;
  const unsigned no_number = has_infinity ? infinity | 1u << (mantissa - 1) : infinity | ((1u << mantissa) - 1);
  const float magnitude = fabsf(value);
  if (value != value) return sign | no_number;
  if (magnitude == 0.0f) return sign;
  int exponent = (__float_as_int(magnitude) >> 23) - 127;
  if (exponent < 1 - bias) exponent = 1 - bias;
  if (exponent + bias > (int)most) return sign | (has_infinity ? infinity : no_number);
  const unsigned steps = (unsigned)rintf(ldexpf(magnitude, mantissa - exponent)), one = 1u << mantissa;
  const unsigned bits = steps < one ? steps : ((unsigned)(exponent + bias) << mantissa) + (steps - one);
  const unsigned largest = has_infinity ? infinity - 1 : no_number - 1;
  return sign | (bits <= largest ? bits : has_infinity ? infinity : no_number);
}

template <class T> __device__ T value_of(T x) { return x; }
__device__ inline float value_of(E4M3 x) { return widened(x.bits, 3, 4, 7, false); }
__device__ inline float value_of(E5M2 x) { return widened(x.bits, 2, 5, 15, true); }
__device__ inline float value_of(BFloat x) { return __int_as_float((unsigned)x.bits << 16); }
#ifdef KERNELYARD_EMULATION
template <class T> auto value_of(const emulation::TensorElement<T>& x) { return value_of((T)x); }
__device__ inline float value_of(Half x) { return widened(x.bits, 10, 5, 15, true); }
__device__ inline unsigned short half_bits(float x) { return (unsigned short)narrowed(x, 10, 5, 15, true); }
__device__ inline unsigned short bfloat_bits(float x) {
  const unsigned bits = (unsigned)__float_as_int(x);
  if (x != x) return (unsigned short)(bits >> 16 | 0x40u);
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
__device__ inline float power_of_two(float x) { return exp2f(x); }
#else
__device__ inline float value_of(Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ inline unsigned short half_bits(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ inline unsigned short bfloat_bits(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
// 2 to the power x, to 22 bits.
__device__ inline float power_of_two(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
#endif
#ifdef KERNELYARD_EMULATION
__device__ inline float narrow_quotient(float a, float b) { return a / b; }
__device__ inline float narrow_reciprocal(float x) { return 1.0f / x; }
#else
__device__ inline float narrow_quotient(float a, float b) {  // to 22 bits
  float value;
  asm("div.full.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}
__device__ inline float narrow_reciprocal(float x) {  // to 23 bits
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
#endif
// Functions where as much as a narrow float holds is enough. Near 0, where 1 - (1 - x) has lost x, tanh and erf are lines.
const float LOG2_E = 1.44269504f;
__device__ inline float narrow_exp(float x) { return power_of_two(x * LOG2_E); }
__device__ inline float narrow_sigmoid(float x) { return narrow_reciprocal(1.0f + power_of_two(x * -LOG2_E)); }
__device__ inline float narrow_tanh(float x) {
  const float size = fabsf(x), far = 1.0f - 2.0f * narrow_reciprocal(1.0f + power_of_two(size * (2.0f * LOG2_E)));
  return size < 0x1p-7f ? x : copysignf(far, x);
}
// -log2(1 - erf(x)) as a polynomial: its error, and that of 1 - erf(x) relative to itself, is below 2^-14 up to x = 4.
__device__ inline float narrow_erf(float x) {
  const float size = fabsf(x);
  float power = 1.05091189e-05f;
  power = power * size - 3.81922028e-04f;
  power = power * size + 4.79521909e-03f;
  power = power * size - 3.30534533e-02f;
  power = power * size + 1.51574200e-01f;
  power = power * size + 9.17470735e-01f;
  power = power * size + 1.62800331f;
  const float far = 1.0f - power_of_two(power * -size);
  return size < 0x1p-6f ? x * 1.12837917f : copysignf(far, x);
}
template <class T> struct Stored { template <class V> static __device__ T of(V x) { return (T)x; } };
template <> struct Stored<Half> { static __device__ Half of(float x) { return {half_bits(x)}; } };
template <> struct Stored<E4M3> {
  static __device__ E4M3 of(float x) { return {(unsigned char)narrowed(x, 3, 4, 7, false)}; }
};
template <> struct Stored<E5M2> {
  static __device__ E5M2 of(float x) { return {(unsigned char)narrowed(x, 2, 5, 15, true)}; }
};
template <> struct Stored<BFloat> { static __device__ BFloat of(float x) { return {bfloat_bits(x)}; } };

// --- operations -------------------------------------------------------------------------------------------------------
template <class T> __device__ T least(T a, T b) { return a != a ? a : b != b || b < a ? b : a; }
template <class T> __device__ T most(T a, T b) { return a != a ? a : b != b || b > a ? b : a; }
#ifndef KERNELYARD_EMULATION  // one instruction each: of a number and what is none, the result is none
template <> __device__ inline float least(float a, float b) {
  float value;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}
template <> __device__ inline float most(float a, float b) {
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}
#endif
template <class T> __device__ T sign_of(T x) { return x != x ? x : (T)((x > T(0)) - (x < T(0))); }
template <class T> __device__ T magnitude_of(T x) { return x < T(0) ? (T)(T(0) - x) : x; }
template <class T> __device__ T truncated_quotient(T a, T b) {
  return b == T(0) ? T(0) : T(-1) < T(0) && b == T(-1) ? (T)(0ull - (unsigned long long)a) : (T)(a / b);
}
template <class T> __device__ T remainder_like(T a, T b) {  // with the sign of a
  return b == T(0) || (T(-1) < T(0) && b == T(-1)) ? T(0) : (T)(a % b);
}
template <class T> __device__ T floor_quotient(T a, T b) {
  const T quotient = truncated_quotient(a, b), rest = remainder_like(a, b);
  return rest != T(0) && ((rest < T(0)) != (b < T(0))) ? (T)(quotient - 1) : quotient;
}
template <class T> __device__ T modulo(T a, T b) {  // with the sign of b
  const T rest = remainder_like(a, b);
  return rest != T(0) && ((rest < T(0)) != (b < T(0))) ? (T)(rest + b) : rest;
}
template <> __device__ inline float modulo(float a, float b) {
  const float rest = fmodf(a, b);
  return rest == 0.0f ? copysignf(0.0f, b) : (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}
template <> __device__ inline double modulo(double a, double b) {
  const double rest = fmod(a, b);
  return rest == 0.0 ? copysign(0.0, b) : (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
template <class T> __device__ T integer_power(T a, T b) {
  if (b < T(0)) return a == T(1) ? T(1) : a == T(-1) ? (b % 2 ? T(-1) : T(1)) : T(0);
  unsigned long long power = 1, factor = (unsigned long long)a;
  for (; b > T(0); b = (T)(b / 2), factor *= factor)
    if (b % 2) power *= factor;
  return (T)power;
}
template <class T> __device__ T shifted_left(T a, T b) {
  return b < T(0) || b >= T(8 * sizeof(T)) ? T(0) : (T)((unsigned long long)a << b);
}
template <class T> __device__ T shifted_right(T a, T b) {
  return b < T(0) || b >= T(8 * sizeof(T)) ? (a < T(0) ? T(-1) : T(0)) : (T)(a >> b);
}
template <class T, class F> __device__ T to_integer(F x) {  // toward zero; what is not finite becomes 0
  if (!(x - x == F(0))) return T(0);
  return x >= F(9223372036854775808.0) ? (T)(unsigned long long)x : (T)(long long)x;
}

// --- reducers ---------------------------------------------------------------------------------------------------------
struct Sum { template <class T> static __device__ T of(T a, T b) { return (T)(a + b); } };
struct Prod { template <class T> static __device__ T of(T a, T b) { return (T)(a * b); } };
struct Min { template <class T> static __device__ T of(T a, T b) { return least(a, b); } };
struct Max { template <class T> static __device__ T of(T a, T b) { return most(a, b); } };
struct Any { template <class T> static __device__ T of(T a, T b) { return a || b; } };
struct All { template <class T> static __device__ T of(T a, T b) { return a && b; } };

template <class T> __device__ T of_lane_across(T value, int mask) {
  if constexpr (sizeof(T) < 4) return (T)__shfl_xor_sync(ALL_LANES, (int)value, mask);
  else return __shfl_xor_sync(ALL_LANES, value, mask);
}

// The values of `LANES` neighbouring threads of a warp combined; each of them gets the result. All lanes must come here.
template <class Op, int LANES, class T> __device__ T lanes_reduced(T value) {
  for (int mask = LANES / 2; mask; mask >>= 1) value = Op::of(value, of_lane_across(value, mask));
  return value;
}

// The values of a warp's lanes that are `APART` from each other combined; each of them gets the result. All lanes must come
// here.
template <class Op, int APART, class T> __device__ T groups_reduced(T value) {
  for (int mask = APART; mask < WARP; mask <<= 1) value = Op::of(value, of_lane_across(value, mask));
  return value;
}

// The values of a block's threads combined; every thread gets the result. All threads must come here.
template <class Op, int THREADS, class T> __device__ T block_reduced(T value) {
  value = lanes_reduced<Op, WARP>(value);
  if constexpr (THREADS > WARP) {
    SHARED(T, partial, THREADS / WARP);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
    __syncthreads();
    value = partial[0];
    for (int warp = 1; warp < THREADS / WARP; ++warp) value = Op::of(value, (T)partial[warp]);
    __syncthreads();
  }
  return value;
}

// use(i, load(i)) for i from `first` on in steps. What `AHEAD` of them load is on its way before the first is used: a loop
// that may end between two loads has one of them in flight.
template <int AHEAD, class Loaded, class Load, class Use>
__device__ void in_rounds(long long first, long long end, long long step, Load load, Use use) {
  long long i = first;
  for (; i + (AHEAD - 1) * step < end; i += AHEAD * step) {
    Loaded loaded[AHEAD];
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) loaded[n] = load(i + n * step);
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) use(i + n * step, loaded[n]);
  }
#pragma unroll 1
  for (; i < end; i += step) use(i, load(i));
}

// Whether a value at a place comes before the best one so far: NaN first, then the greatest (or least), then the first
// place. A place below 0 is none.
template <bool GREATEST, class T> __device__ bool comes_first(T value, long long place, T best, long long best_place) {
  const bool beats = GREATEST ? !(value <= best) : !(value >= best);  // or one of them is no number
  const bool is_earlier = place < best_place, is_number = best == best;
  const bool is_first = is_number ? beats | ((value == best) & is_earlier) : (value != value) & is_earlier;
  return (place >= 0) & ((best_place < 0) | is_first);
}

// The place of the value that comes first among those of a block's threads; every thread gets it. All threads must come here.
template <bool GREATEST, int THREADS, class T> __device__ long long place_of_first(T value, long long place) {
  SHARED(T, values, THREADS);
  SHARED(long long, places, THREADS);
  values[threadIdx.x] = value;
  places[threadIdx.x] = place;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) {
      const T other = values[threadIdx.x + half];
      const long long there = places[threadIdx.x + half];
      if (comes_first<GREATEST, T>(other, there, values[threadIdx.x], places[threadIdx.x])) {
        values[threadIdx.x] = other;
        places[threadIdx.x] = there;
      }
    }
  }
  __syncthreads();
  return places[0];
}

// --- some neighbouring elements, of which `count` are there -------------------------------------------------------------
template <int N, class T> __device__ Pack<T, N> some_at(GLOBAL(const T) p, long long i, int count) {
  if (count == N) return pack_at<N, T>(p, i);
  Pack<T, N> all = {};
#pragma unroll
  for (int lane = 0; lane < N; ++lane)  // no place in registers depends on the count
    if (lane < count) all.at[lane] = p[i + lane];
  return all;
}
template <int N, class T> __device__ void put_some(GLOBAL(T) p, long long i, int count, Pack<T, N> all) {
  if (count == N) {
    put_pack<N, T>(p, i, all);
  } else {
#pragma unroll
    for (int lane = 0; lane < N; ++lane)
      if (lane < count) p[i + lane] = all.at[lane];
  }
}

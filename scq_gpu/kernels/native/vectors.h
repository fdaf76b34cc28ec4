// Registers of one instruction set. CMakeLists.txt compiles every file that includes this once per instruction set, with
// SCQ_ISA naming the namespace: `base` (whatever the compiler's default is), `avx2`, `avx512`, `neon`.
//
// Kernels are written with the vector extensions of GCC and Clang. What those lack is below: lookups in a table of 16
// bytes, saturating sums, one bit per lane, fused multiply-add.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(SCQ_EMULATE_AVX512) || defined(SCQ_EMULATE_NEON)
#include "emulated.h"  // tests/native: the tests run AVX-512 and NEON on processors that have neither
#elif defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512BW__) || defined(SCQ_EMULATE_AVX512)
#define SCQ_AVX512 1
#elif defined(__ARM_NEON) || defined(SCQ_EMULATE_NEON)
#define SCQ_NEON 1
#endif

namespace scq::SCQ_ISA {

#if SCQ_AVX512
constexpr int WIDTH = 64;
#elif defined(__AVX2__)
constexpr int WIDTH = 32;
#else
constexpr int WIDTH = 16;
#endif

typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));
typedef uint16_t Words __attribute__((vector_size(WIDTH)));
typedef float Floats __attribute__((vector_size(WIDTH)));
typedef double Doubles __attribute__((vector_size(WIDTH)));
typedef int32_t Integers __attribute__((vector_size(WIDTH)));
typedef int64_t Longs __attribute__((vector_size(WIDTH)));

template <class Vector>
inline Vector load(const void* address) {
  Vector v;
  std::memcpy(&v, address, sizeof v);
  return v;
}

// the table's 16 bytes in every 16 bytes of a register
inline Bytes repeat(const uint8_t* table) {
#if SCQ_AVX512
  return (Bytes)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
#elif defined(__AVX2__)
  return (Bytes)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
#else
  return load<Bytes>(table);
#endif
}

// table[index[i]] for every lane; indexes are below 16
inline Bytes lookup(Bytes table, Bytes index) {
#if SCQ_AVX512
  return (Bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif defined(__AVX2__)
  return (Bytes)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#elif SCQ_NEON
  return (Bytes)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
  Bytes found;
  for (int i = 0; i < WIDTH; i++) found[i] = table[index[i]];
  return found;
#endif
}

// a + b, or 255 where that is less
inline Bytes add_saturated(Bytes a, Bytes b) {
#if SCQ_AVX512
  return (Bytes)_mm512_adds_epu8((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Bytes)_mm256_adds_epu8((__m256i)a, (__m256i)b);
#elif SCQ_NEON
  return (Bytes)vqaddq_u8((uint8x16_t)a, (uint8x16_t)b);
#else
  Bytes sum = a + b;
  return sum | (Bytes)(sum < a);
#endif
}

// the highest bit of every byte
inline uint64_t high_bits(Bytes v) {
#if SCQ_AVX512
  return _mm512_movepi8_mask((__m512i)v);
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_epi8((__m256i)v);
#else
  // the bits of eight bytes meet in the highest byte of a product
  uint64_t half[2];
  std::memcpy(half, &v, sizeof half);
  uint64_t low = ((half[0] & 0x8080808080808080u) >> 7) * 0x0102040810204080u >> 56;
  uint64_t high = ((half[1] & 0x8080808080808080u) >> 7) * 0x0102040810204080u >> 56;
  return low | high << 8;
#endif
}

#if SCQ_AVX512
// Lookups in tables of 256 bytes. Not every processor with AVX-512 has the instruction, so the functions that use it are
// marked, and called only if it is there.
#if defined(SCQ_EMULATE_AVX512)
#define SCQ_WIDE_LOOKUP
inline bool has_wide_lookup() { return true; }
#else
#define SCQ_WIDE_LOOKUP __attribute__((target("avx512vbmi")))
inline bool has_wide_lookup() { return __builtin_cpu_supports("avx512vbmi"); }
#endif
SCQ_WIDE_LOOKUP inline Bytes wide_lookup(const uint8_t* table, Bytes index) {
  __m512i at = (__m512i)index;
  __m512i low = _mm512_permutex2var_epi8(load<__m512i>(table), at, load<__m512i>(table + 64));
  __m512i high = _mm512_permutex2var_epi8(load<__m512i>(table + 128), at, load<__m512i>(table + 192));
  return (Bytes)_mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high);
}
#endif

// 0xFF where v <= limit
inline Bytes at_most(Bytes v, uint8_t limit) { return (Bytes)(v <= (Bytes{} + limit)); }
inline Words at_most(Words v, uint16_t limit) { return (Words)(v <= (Words{} + limit)); }

// a * b + c with one rounding
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if SCQ_AVX512
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif SCQ_NEON
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  for (int i = 0; i < WIDTH / 4; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if SCQ_AVX512
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif SCQ_NEON
  return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  for (int i = 0; i < WIDTH / 8; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

// bit i is set where a[i] >= b[i]
inline uint32_t not_below(Floats a, Floats b) {
#if SCQ_AVX512
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#else
  uint32_t bits = 0;
  for (int i = 0; i < WIDTH / 4; i++) bits |= (uint32_t)(a[i] >= b[i]) << i;
  return bits;
#endif
}

inline uint32_t not_below(Doubles a, Doubles b) {
#if SCQ_AVX512
  return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_GE_OQ));
#else
  uint32_t bits = 0;
  for (int i = 0; i < WIDTH / 8; i++) bits |= (uint32_t)(a[i] >= b[i]) << i;
  return bits;
#endif
}

}  // namespace scq::SCQ_ISA

// The instructions of AVX-512 and NEON that vectors.h names, in plain C++ after the manuals of their makers, so that the
// kernels for these processors run and are tested on any other. Nothing of the library is used here.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(SCQ_EMULATE_AVX512)

typedef uint8_t __m512i __attribute__((vector_size(64)));
typedef float __m512 __attribute__((vector_size(64)));
typedef double __m512d __attribute__((vector_size(64)));
typedef uint8_t Lane128 __attribute__((vector_size(16)));
#define __m128i Lane128
enum { _CMP_GE_OQ = 0x1D };

inline Lane128 _mm_loadu_si128(const Lane128* p) {
  Lane128 v;
  std::memcpy(&v, p, 16);
  return v;
}

// VBROADCASTI32X4: 128 bits, four times
inline __m512i _mm512_broadcast_i32x4(Lane128 a) {
  __m512i r;
  for (int i = 0; i < 64; i++) r[i] = a[i % 16];
  return r;
}

// VPSHUFB: within each 128 bits, by the low four bits of the index; zero where its highest bit is set
inline __m512i _mm512_shuffle_epi8(__m512i a, __m512i b) {
  __m512i r;
  for (int i = 0; i < 64; i++) r[i] = b[i] & 0x80 ? 0 : a[i / 16 * 16 + (b[i] & 15)];
  return r;
}

// VPERMI2B: the low seven bits of the index number the bytes of two registers
inline __m512i _mm512_permutex2var_epi8(__m512i a, __m512i index, __m512i b) {
  __m512i r;
  for (int i = 0; i < 64; i++) r[i] = index[i] & 64 ? b[index[i] & 63] : a[index[i] & 63];
  return r;
}

// VPBLENDMB: b where the bit of the mask is set
inline __m512i _mm512_mask_blend_epi8(uint64_t mask, __m512i a, __m512i b) {
  for (int i = 0; i < 64; i++) a[i] = mask >> i & 1 ? b[i] : a[i];
  return a;
}

// VPADDUSB
inline __m512i _mm512_adds_epu8(__m512i a, __m512i b) {
  __m512i r;
  for (int i = 0; i < 64; i++) r[i] = (uint8_t)(a[i] + b[i] > 255 ? 255 : a[i] + b[i]);
  return r;
}

// VPMOVB2M: the highest bit of each byte
inline uint64_t _mm512_movepi8_mask(__m512i a) {
  uint64_t mask = 0;
  for (int i = 0; i < 64; i++) mask |= (uint64_t)(a[i] >> 7) << i;
  return mask;
}

// VFMADD: one rounding
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  for (int i = 0; i < 16; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}

inline __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c) {
  for (int i = 0; i < 8; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}

// VCMP with the predicate "greater or equal, ordered, quiet"
inline uint16_t _mm512_cmp_ps_mask(__m512 a, __m512 b, int) {
  uint16_t mask = 0;
  for (int i = 0; i < 16; i++) mask |= (uint16_t)((a[i] >= b[i]) << i);
  return mask;
}

inline uint8_t _mm512_cmp_pd_mask(__m512d a, __m512d b, int) {
  uint8_t mask = 0;
  for (int i = 0; i < 8; i++) mask |= (uint8_t)((a[i] >= b[i]) << i);
  return mask;
}

#else

typedef uint8_t uint8x16_t __attribute__((vector_size(16)));
typedef float float32x4_t __attribute__((vector_size(16)));
typedef double float64x2_t __attribute__((vector_size(16)));

// TBL: zero where the index is out of range
inline uint8x16_t vqtbl1q_u8(uint8x16_t t, uint8x16_t idx) {
  uint8x16_t r;
  for (int i = 0; i < 16; i++) r[i] = idx[i] > 15 ? 0 : t[idx[i]];
  return r;
}

// UQADD
inline uint8x16_t vqaddq_u8(uint8x16_t a, uint8x16_t b) {
  for (int i = 0; i < 16; i++) a[i] = (uint8_t)(a[i] + b[i] > 255 ? 255 : a[i] + b[i]);
  return a;
}

// FMLA: a + b c, one rounding
inline float32x4_t vfmaq_f32(float32x4_t a, float32x4_t b, float32x4_t c) {
  for (int i = 0; i < 4; i++) a[i] = std::fma(b[i], c[i], a[i]);
  return a;
}

inline float64x2_t vfmaq_f64(float64x2_t a, float64x2_t b, float64x2_t c) {
  for (int i = 0; i < 2; i++) a[i] = std::fma(b[i], c[i], a[i]);
  return a;
}

#endif

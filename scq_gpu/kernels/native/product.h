// Products of rows and a matrix, a tile of scores at a time, which never leave the registers.
//
// The matrix is packed into panels of a few registers of columns. A tile is ROWS rows times a panel, whose scores are
// summed over all of d in one order for any batch, number of threads and instruction set: what is made of a row is the
// same alone as among millions.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "vectors.h"

namespace scq::SCQ_ISA {

constexpr int VECTORS = WIDTH == 16 ? 4 : 2;  // registers of a panel
constexpr int ROWS = WIDTH == 64 ? 12 : 6;
constexpr int64_t BLOCK_BYTES = 3 << 17;    // of rows that stay in L2 while panel after panel goes over them
constexpr int64_t WORTH_A_THREAD = 1 << 21;  // multiplications

template <class T>
using Vector = std::conditional_t<sizeof(T) == 4, Floats, Doubles>;

template <class T>
constexpr int COLUMNS = VECTORS * WIDTH / (int)sizeof(T);

// W (d, n_bits) and t as panels of COLUMNS columns: d rows of W, then t. A padding column never reaches its threshold.
template <class T>
class Panels {
 public:
  Panels(const T* W, int64_t d, int64_t n_bits, int64_t row_step, int64_t column_step, const T* t)
      : count((n_bits + COLUMNS<T> - 1) / COLUMNS<T>), d_(d), memory_(count * (d + 1) * COLUMNS<T> + 64) {
    start_ = memory_.data();
    while ((uintptr_t)start_ % 64) start_++;
    for (int64_t column = 0; column < count * COLUMNS<T>; column++) {
      T* to = const_cast<T*>(panel(column / COLUMNS<T>)) + column % COLUMNS<T>;
      for (int64_t k = 0; k < d; k++) to[k * COLUMNS<T>] = column < n_bits ? W[k * row_step + column * column_step] : 0;
      to[d * COLUMNS<T>] = column >= n_bits ? std::numeric_limits<T>::infinity() : t ? t[column] : 0;
    }
  }

  const T* panel(int64_t p) const { return start_ + p * (d_ + 1) * COLUMNS<T>; }

  const int64_t count;

 private:
  int64_t d_;
  std::vector<T> memory_;
  T* start_;
};

// scores = x W for ROWS rows and one panel. `ahead` bytes after a row are those of the next tile.
template <class T>
inline __attribute__((always_inline)) void multiply(const T* const* rows, int64_t ahead, int64_t d, const T* panel,
                                                    Vector<T> (&scores)[ROWS][VECTORS]) {
  using V = Vector<T>;
  constexpr int LANES = WIDTH / sizeof(T);
  const T* x[ROWS];
  for (int r = 0; r < ROWS; r++) {
    x[r] = rows[r];
    for (int v = 0; v < VECTORS; v++) scores[r][v] = V{};
  }
  constexpr int64_t LINE = 64 / sizeof(T);
  for (int64_t start = 0; start < d; start += LINE) {
    // the rows of the next tile, a cache line at a time
    for (int r = 0; r < ROWS; r++) __builtin_prefetch((const char*)(x[r] + start) + ahead);
    int64_t end = std::min(d, start + LINE);
#pragma GCC unroll 2
    for (int64_t k = start; k < end; k++) {
      V w[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) w[v] = load<V>(panel + k * COLUMNS<T> + v * LANES);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        V factor = x[r][k] - V{};
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) scores[r][v] = multiply_add(factor, w[v], scores[r][v]);
      }
    }
  }
}

// ---- rows of other types, widened to float32 ----

inline void widen(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

// Exponent and mantissa of a float16 in the places of a float32's, times the difference of the biases.
inline void widen(const uint16_t* from, int64_t n, float* to) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
#endif
  for (; i < n; i++) {
    uint32_t size = (uint32_t)(from[i] & 0x7FFF) << 13, sign = (uint32_t)(from[i] & 0x8000) << 16, bits;
    float value;
    std::memcpy(&value, &size, 4);
    value *= 5192296858534827628530496329220096.0f;  // 2^112
    std::memcpy(&bits, &value, 4);
    // the largest exponent stands for infinity and NaN
    bits = size >= 0x0F800000 ? size | 0x7F800000 : bits;
    bits |= sign;
    std::memcpy(to + i, &bits, 4);
  }
}

}  // namespace scq::SCQ_ISA

// Codes of rows: bit k of row x is x . w_k >= t_k, and only bits leave the registers.
//
// W is packed into panels of a few registers of columns. A tile is ROWS rows times a panel, whose scores are summed in
// registers over all of d, in one order for any batch, number of threads and instruction set: a row has the same code
// alone as among millions.
#include <algorithm>
#include <limits>

#include "kernels.h"
#include "vectors.h"

namespace scq::SCQ_ISA {
namespace {

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
      to[d * COLUMNS<T>] = column < n_bits ? t[column] : std::numeric_limits<T>::infinity();
    }
  }

  const T* panel(int64_t p) const { return start_ + p * (d_ + 1) * COLUMNS<T>; }

  const int64_t count;

 private:
  int64_t d_;
  std::vector<T> memory_;
  T* start_;
};

// Write the bits of ROWS rows for one panel to `codes`; `nonfinite` becomes NaN for good if a score is not finite.
// Apart from its callers, so that the addresses of its rows stay in registers.
template <class T>
__attribute__((noinline)) void encode_tile(const T* const* rows, int64_t ahead, int64_t d, const T* panel, int bytes,
                        uint8_t* const* codes, Vector<T>& nonfinite) {
  using V = Vector<T>;
  constexpr int LANES = WIDTH / sizeof(T);
  V scores[ROWS][VECTORS] = {};
  const T* x[ROWS];
  for (int r = 0; r < ROWS; r++) x[r] = rows[r];
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
  V t[VECTORS];
  for (int v = 0; v < VECTORS; v++) t[v] = load<V>(panel + d * COLUMNS<T> + v * LANES);
  for (int r = 0; r < ROWS; r++) {
    uint64_t bits = 0;
    for (int v = 0; v < VECTORS; v++) {
      bits |= (uint64_t)not_below(scores[r][v], t[v]) << (v * LANES);
      nonfinite += scores[r][v] - scores[r][v];
    }
    for (int i = 0; i < bytes; i++) codes[r][i] = (uint8_t)(bits >> (8 * i));
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

template <class T, class From>
void encode_block(const char* rows, int64_t n, int64_t stride, int64_t d, const Panels<T>& panels, uint8_t* codes,
                  int64_t width, std::vector<T>& scratch, Vector<T>& nonfinite) {
  if constexpr (!std::is_same_v<T, From>) {
    scratch.resize(n * d);
    for (int64_t i = 0; i < n; i++) widen((const From*)(rows + i * stride), d, &scratch[i * d]);
    rows = (const char*)scratch.data();
    stride = d * sizeof(T);
  }
  for (int64_t p = 0; p < panels.count; p++) {
    int64_t byte = p * COLUMNS<T> / 8;
    int bytes = (int)std::min<int64_t>(COLUMNS<T> / 8, width - byte);
    for (int64_t first = 0; first < n; first += ROWS) {
      // where fewer rows are left, the last one is computed again and written to the same place
      const T* x[ROWS];
      uint8_t* out[ROWS];
      for (int r = 0; r < ROWS; r++) {
        int64_t row = std::min(first + r, n - 1);
        x[r] = (const T*)(rows + row * stride);
        out[r] = codes + row * width + byte;
      }
      encode_tile<T>(x, ROWS * stride, d, panels.panel(p), bytes, out, nonfinite);
    }
  }
}

template <class T, class From>
bool encode_all(const Call& call, const char* rows, int64_t n, int64_t stride, const Panels<T>& panels, int64_t d,
                int64_t n_bits, uint8_t* codes, bool* finite) {
  int64_t width = (n_bits + 7) / 8;
  int64_t height = std::max<int64_t>(ROWS, BLOCK_BYTES / (d * (int64_t)sizeof(T)) / ROWS * ROWS);
  int threads = n * d * n_bits < WORTH_A_THREAD ? 1 : call.threads;
  std::vector<std::vector<T>> scratch(call.threads);
  std::vector<Vector<T>> nonfinite(call.threads, Vector<T>{});
  bool done = run((n + height - 1) / height, threads, call.interrupted, [&](Job&, int64_t number, int thread) {
    int64_t first = number * height;
    Vector<T> mine{};
    encode_block<T, From>(rows + first * stride, std::min(height, n - first), stride, d, panels, codes + first * width,
                          width, scratch[thread], mine);
    nonfinite[thread] += mine;
  });
  *finite = true;
  for (const auto& v : nonfinite)
    for (size_t i = 0; i < WIDTH / sizeof(T); i++) *finite = *finite && v[i] == v[i];
  return done;
}

}  // namespace

bool encode(const Call& call, const void* rows, int64_t n, int64_t stride, char type, const void* W, int64_t d,
            int64_t n_bits, int64_t row_step, int64_t column_step, const void* t, bool in_double, uint8_t* codes,
            bool* finite) {
  const char* x = (const char*)rows;
  if (in_double) {
    Panels<double> panels((const double*)W, d, n_bits, row_step, column_step, (const double*)t);
    return encode_all<double, double>(call, x, n, stride, panels, d, n_bits, codes, finite);
  }
  Panels<float> panels((const float*)W, d, n_bits, row_step, column_step, (const float*)t);
  if (type == 'e') return encode_all<float, uint16_t>(call, x, n, stride, panels, d, n_bits, codes, finite);
  if (type == 'B') return encode_all<float, uint8_t>(call, x, n, stride, panels, d, n_bits, codes, finite);
  return encode_all<float, float>(call, x, n, stride, panels, d, n_bits, codes, finite);
}

}  // namespace scq::SCQ_ISA

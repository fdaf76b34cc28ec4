// Codes of rows: bit k of row x is x . w_k >= t_k, and only bits leave the registers (product.h).
#include "kernels.h"
#include "product.h"

namespace scq::SCQ_ISA {
namespace {

// Write the bits of ROWS rows for one panel to `codes`; `nonfinite` becomes NaN for good if a score is not finite.
// Apart from its callers, so that the addresses of its rows stay in registers.
template <class T>
__attribute__((noinline)) void encode_tile(const T* const* rows, int64_t ahead, int64_t d, const T* panel, int bytes,
                        uint8_t* const* codes, Vector<T>& nonfinite) {
  using V = Vector<T>;
  constexpr int LANES = WIDTH / sizeof(T);
  V scores[ROWS][VECTORS];
  multiply<T>(rows, ahead, d, panel, scores);
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

// Product codes: byte g of a row x names the cell c of 256 for which y . c - |c|^2 / 2 is largest, y being w numbers of
// (x - mean) W. The two products are tiles of product.h; nothing but codes leaves the cache.
#include <memory>

#include "kernels.h"
#include "product.h"

namespace scq::SCQ_ISA {
namespace {

constexpr int CELLS = 256;

template <class T>
struct Best {
  using Numbers = std::conditional_t<sizeof(T) == 4, Integers, Longs>;  // as wide as T

  Vector<T> score{};
  Numbers cell{};
};

// Let the cells of one panel, numbered from `first` on, compete for the rows of a tile.
template <class T>
__attribute__((noinline)) void compete(const T* const* rows, int64_t ahead, int64_t w, const T* panel, int first,
                                       Best<T>* best) {
  using Numbers = typename Best<T>::Numbers;
  constexpr int LANES = WIDTH / sizeof(T);
  Vector<T> scores[ROWS][VECTORS];
  multiply<T>(rows, ahead, w, panel, scores);
  Vector<T> halves[VECTORS];
  Numbers lanes, numbers[VECTORS];
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  for (int v = 0; v < VECTORS; v++) {
    halves[v] = load<Vector<T>>(panel + w * COLUMNS<T> + v * LANES);
    numbers[v] = lanes + (first + v * LANES);
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    Best<T> at = best[r];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
      Vector<T> score = scores[r][v] - halves[v];
      // of equal scores, the lowest cell of a lane stays
      Numbers better = (Numbers)(score > at.score);
      at.cell = better ? numbers[v] : at.cell;
      at.score = better ? score : at.score;
    }
    best[r] = at;
  }
}

// The lowest of the cells with the largest score.
template <class T>
uint8_t winner(const Best<T>& best) {
  constexpr int LANES = WIDTH / sizeof(T);
  T scores[LANES];
  std::conditional_t<sizeof(T) == 4, int32_t, int64_t> cells[LANES];
  std::memcpy(scores, &best.score, WIDTH);
  std::memcpy(cells, &best.cell, WIDTH);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) {
      bool other = scores[i + half] > scores[i] || (scores[i + half] == scores[i] && cells[i + half] < cells[i]);
      scores[i] = other ? scores[i + half] : scores[i];
      cells[i] = other ? cells[i + half] : cells[i];
    }
  return (uint8_t)cells[0];
}

// Write the scores of a tile, side by side for each row.
template <class T>
__attribute__((noinline)) void project(const T* const* rows, int64_t ahead, int64_t d, const T* panel, T* const* out,
                                       Vector<T>& nonfinite) {
  constexpr int LANES = WIDTH / sizeof(T);
  Vector<T> scores[ROWS][VECTORS];
  multiply<T>(rows, ahead, d, panel, scores);
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) {
      std::memcpy(out[r] + v * LANES, &scores[r][v], WIDTH);
      nonfinite += scores[r][v] - scores[r][v];
    }
}

// The rows of a tile from number `first` on; where fewer are left, the last one stands in for them.
template <class T, class Pointer>
void point(Pointer* to, Pointer rows, int64_t n, int64_t stride, int64_t first) {
  for (int r = 0; r < ROWS; r++) to[r] = rows + std::min(first + r, n - 1) * stride;
}

template <class T>
struct Codebooks {
  const Panels<T>* W;  // null: rows are projected already
  std::vector<Panels<T>> cells;
  const T* mean;
  int64_t d, w;
};

// The codes of n rows; `x` and `y` are scratch.
template <class T, class From>
void quantize_block(const char* rows, int64_t n, int64_t stride, const Codebooks<T>& books, uint8_t* codes,
                    std::vector<T>& x, std::vector<T>& y, Vector<T>& nonfinite) {
  const T *from[ROWS], *projected = (const T*)rows;
  int64_t d = books.d, n_bytes = books.cells.size(), step = stride / (int64_t)sizeof(T);
  if (books.W) {
    x.resize(n * d);
    for (int64_t i = 0; i < n; i++) {
      T* to = &x[i * d];
      if constexpr (std::is_same_v<T, From>) std::memcpy(to, rows + i * stride, d * sizeof(T));
      else widen((const From*)(rows + i * stride), d, to);
      for (int64_t k = 0; k < d; k++) to[k] -= books.mean[k];
    }
    step = books.W->count * COLUMNS<T>;
    y.resize(n * step);
    projected = y.data();
    for (int64_t p = 0; p < books.W->count; p++)
      for (int64_t first = 0; first < n; first += ROWS) {
        T* to[ROWS];
        point<T, const T*>(from, x.data(), n, d, first);
        point<T, T*>(to, y.data() + p * COLUMNS<T>, n, step, first);
        project<T>(from, ROWS * d * sizeof(T), d, books.W->panel(p), to, nonfinite);
      }
  }
  for (int64_t g = 0; g < n_bytes; g++)
    for (int64_t first = 0; first < n; first += ROWS) {
      Best<T> best[ROWS];
      for (Best<T>& mine : best) mine.score -= std::numeric_limits<T>::infinity();
      point<T, const T*>(from, projected + g * books.w, n, step, first);
      for (int p = 0; p < CELLS / COLUMNS<T>; p++)
        compete<T>(from, ROWS * step * sizeof(T), books.w, books.cells[g].panel(p), p * COLUMNS<T>, best);
      for (int64_t r = 0; r < std::min<int64_t>(ROWS, n - first); r++) codes[(first + r) * n_bytes + g] = winner(best[r]);
    }
}

template <class T, class From>
bool quantize_all(const Call& call, const char* rows, int64_t n, int64_t stride, const Quantizer& by, uint8_t* codes,
                  bool* finite) {
  Codebooks<T> books{nullptr, {}, (const T*)by.mean, by.d, by.w};
  std::unique_ptr<Panels<T>> W;
  if (by.W) W = std::make_unique<Panels<T>>((const T*)by.W, by.d, by.n_bytes * by.w, by.row_step, by.column_step, nullptr);
  books.W = W.get();
  books.cells.reserve(by.n_bytes);
  for (int64_t g = 0; g < by.n_bytes; g++)
    books.cells.emplace_back((const T*)by.cells + g * CELLS * by.w, by.w, CELLS, 1, by.w, (const T*)by.halves + g * CELLS);
  int64_t D = by.n_bytes * by.w, longest = std::max(by.W ? by.d : 0, D);
  int64_t height = std::max<int64_t>(ROWS, BLOCK_BYTES / (longest * (int64_t)sizeof(T)) / ROWS * ROWS);
  int threads = n * D * (CELLS + (by.W ? by.d : 0)) < WORTH_A_THREAD ? 1 : call.threads;
  struct Mine {
    std::vector<T> x, y;
    Vector<T> nonfinite{};
  };
  std::vector<Mine> of_thread(call.threads);
  bool done = run((n + height - 1) / height, threads, call.interrupted, [&](Job&, int64_t number, int thread) {
    Mine& mine = of_thread[thread];
    int64_t first = number * height;
    quantize_block<T, From>(rows + first * stride, std::min(height, n - first), stride, books,
                            codes + first * by.n_bytes, mine.x, mine.y, mine.nonfinite);
  });
  *finite = true;
  for (const Mine& mine : of_thread)
    for (size_t i = 0; i < WIDTH / sizeof(T); i++) *finite = *finite && mine.nonfinite[i] == mine.nonfinite[i];
  return done;
}

}  // namespace

bool quantize(const Call& call, const void* rows, int64_t n, int64_t stride, char type, const Quantizer& by,
              uint8_t* codes, bool* finite) {
  const char* x = (const char*)rows;
  if (by.in_double) return quantize_all<double, double>(call, x, n, stride, by, codes, finite);
  if (type == 'e') return quantize_all<float, uint16_t>(call, x, n, stride, by, codes, finite);
  if (type == 'B') return quantize_all<float, uint8_t>(call, x, n, stride, by, codes, finite);
  return quantize_all<float, float>(call, x, n, stride, by, codes, finite);
}

bool add_by_cell(const Call& call, const uint8_t* codes, const void* rows, bool in_double, int64_t n, int64_t n_bytes,
                 int64_t w, double* sums) {
  auto add = [&](const auto* Y, int64_t g) {
    for (int64_t i = 0; i < n; i++) {
      double* to = sums + (g * CELLS + codes[i * n_bytes + g]) * (w + 1);
      const auto* y = Y + (i * n_bytes + g) * w;
      for (int64_t j = 0; j < w; j++) to[j] += y[j];
      to[w] += 1;
    }
  };
  return run(n_bytes, n * n_bytes * w < WORTH_A_THREAD ? 1 : call.threads, call.interrupted, [&](Job&, int64_t g, int) {
    if (in_double) add((const double*)rows, g);
    else add((const float*)rows, g);
  });
}

}  // namespace scq::SCQ_ISA

// What the module calls: plain functions over memory of the caller, which module.cpp has checked. They are compiled once
// per instruction set (vectors.h).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "threads.h"

namespace scq {

// Rows of an index, in one of two layouts:
//   rows     codes[row * width + byte]
//   blocks   codes[(row / 64 * width + byte) * 64 + row % 64], zeros after the last row: the bytes of 64 rows side by side
struct Part {
  const uint8_t* codes;
  int64_t first, rows;  // the place of its first row, and how many there are
  bool blocked;
  const uint64_t* allowed;  // bit row % 64 of word row / 64: the row may be found; null: all may
};

// Rows one after the other, from a place on.
struct Stretch {
  const uint8_t* data;
  int64_t first, rows;
};

// Calls on behalf of a user, who may interrupt them.
struct Call {
  int threads;
  std::function<bool()> interrupted;
};

// Sums of table entries, two tables of 16 for each byte of a code: entries[query][byte][low or high nibble][value].
struct Tables {
  const float* entries;
  int64_t queries;
};

// Cells of product codes: (n_bytes, 256, w) in row order, half their squared lengths (n_bytes, 256), and the map of rows
// to what cells are of, (x - mean) W with W of (d, n_bytes * w); without W, rows are mapped already. Of float or double.
struct Quantizer {
  const void *mean, *W, *cells, *halves;
  int64_t d, n_bytes, w, row_step, column_step;
  bool in_double;
};

struct Pairs {
  std::vector<int64_t> query, row;
  std::vector<int32_t> distance;
};

struct Kernels {
  const char* name;

  // Lay out rows as blocks; ceil(rows / 64) * 64 * width bytes.
  void (*to_blocks)(const uint8_t* codes, int64_t rows, int64_t width, uint8_t* blocks);
  void (*to_rows)(const uint8_t* blocks, int64_t rows, int64_t width, uint8_t* codes);

  // The k nearest rows of each query, by distance, the lowest place first inside one. Parts come by their places, which
  // are the answer. What is missing is left as it is. False: interrupted.
  bool (*nearest)(const Call&, const std::vector<Part>&, int64_t width, const uint8_t* queries, int64_t n_queries,
                  int64_t k, int32_t* distances, int64_t* rows);

  // All pairs within a radius, in no particular order.
  bool (*within)(const Call&, const std::vector<Part>&, int64_t width, const uint8_t* queries, int64_t n_queries,
                 int64_t radius, std::vector<Pairs>& found);

  // The k rows of least score; a score that is NaN counts as inf. The entries of a byte's two tables are added first,
  // then the bytes in their order.
  bool (*least)(const Call&, const std::vector<Part>&, int64_t width, const Tables&, int64_t k, float* scores,
                int64_t* rows);

  // The k rows of least score among product codes, entries[query][byte][cell]. Where no instruction looks up 64 cells
  // at once, about `keep` rows, those nearest by the mean entries of their groups of cells (the high nibbles), are scored.
  bool (*cells)(const Call&, const std::vector<Part>&, int64_t width, const float* entries, int64_t n_queries,
                int64_t keep, int64_t k, float* scores, int64_t* rows);

  // See ranking.cpp.
  bool (*rank)(const Call&, const uint8_t* codes, int64_t n, int64_t width, const uint8_t* queries, int64_t n_queries,
               const uint64_t* labels, const uint64_t* query_labels, int64_t label_words, bool shared, int average,
               int64_t at, int64_t k, int64_t* counts, int64_t* hits, double* precision_sums, int64_t* top_hits);

  // Codes of rows x: bit k is x . w_k >= t_k. See encode.cpp.
  bool (*encode)(const Call&, const void* rows, int64_t n, int64_t stride, char type, const void* W, int64_t d,
                 int64_t n_bits, int64_t row_step, int64_t column_step, const void* t, bool in_double, uint8_t* codes,
                 bool* finite);

  // Product codes of rows x, the nearest cells. See quantize.cpp.
  bool (*quantize)(const Call&, const void* rows, int64_t n, int64_t stride, char type, const Quantizer&, uint8_t* codes,
                   bool* finite);

  // For each byte of codes (n, n_bytes) and each cell: the sum of its rows' w numbers in (n, n_bytes * w), and their
  // number, added to sums (n_bytes, 256, w + 1).
  bool (*add_by_cell)(const Call&, const uint8_t* codes, const void* rows, bool in_double, int64_t n, int64_t n_bytes,
                      int64_t w, double* sums);
};

// The kernels of an instruction set, or null if this processor or this build has none of that name.
const Kernels* kernels(const char* name);

// The instruction sets that have kernels here, the best first.
std::vector<const char*> available();

// Copy the rows with these places; `unknown` is the first place that no part has, -1 if there is none.
bool take(const Call&, const std::vector<Stretch>& parts, int64_t row_bytes, const int64_t* places, int64_t n,
          uint8_t* out, int64_t& unknown);

// Read rows of an open file by their numbers; `missing` is the first of `numbers` that is not there whole, or -1.
bool read_rows(const Call&, int file, int64_t offset, int64_t row_bytes, const int64_t* numbers, int64_t n,
               uint8_t* out, int64_t& missing);

}  // namespace scq

// Sums of table entries over the 64 rows of a block, for a group of queries.
#pragma once
#include <algorithm>
#include <vector>

#include "vectors.h"

namespace scq::SCQ_ISA {

constexpr int PIECES = 64 / WIDTH;  // registers that hold a byte of each row of a block

// The tables of a query for Hamming distances: popcount(v ^ q) for each value v of a nibble. Sums of 31 bytes of a code
// fit a byte.
constexpr int64_t HAMMING_STRETCH = 31;

inline std::vector<uint8_t> hamming_tables(const uint8_t* queries, int64_t n, int64_t width) {
  std::vector<uint8_t> tables(n * width * 32);
  for (int64_t i = 0; i < n * width; i++)
    for (int v = 0; v < 16; v++) {
      tables[32 * i + v] = (uint8_t)__builtin_popcount(v ^ (queries[i] & 15));
      tables[32 * i + 16 + v] = (uint8_t)__builtin_popcount(v ^ (queries[i] >> 4));
    }
  return tables;
}

// One byte of each of the 64 rows, as two nibbles.
struct Nibbles {
  Bytes low[PIECES], high[PIECES];

  explicit Nibbles(const uint8_t* bytes) {
    for (int p = 0; p < PIECES; p++) {
      Bytes v = load<Bytes>(bytes + p * WIDTH);
      low[p] = v & 15;
      high[p] = v >> 4;
    }
  }
};

template <int Q>
struct ByteSums {
  Bytes at[Q][PIECES];
};

// Table sums of the rows for Q queries, 255 where they are more.
template <int Q>
inline void sum_in_bytes(const uint8_t* block, int64_t width, const uint8_t* const* tables, ByteSums<Q>& sums) {
  for (int q = 0; q < Q; q++)
    for (int p = 0; p < PIECES; p++) sums.at[q][p] = Bytes{};
  for (int64_t c = 0; c < width; c++) {
    Nibbles of(block + c * 64);
    for (int q = 0; q < Q; q++) {
      Bytes of_low = repeat(tables[q] + 32 * c), of_high = repeat(tables[q] + 32 * c + 16);
      for (int p = 0; p < PIECES; p++) {
        sums.at[q][p] = add_saturated(sums.at[q][p], lookup(of_low, of.low[p]));
        sums.at[q][p] = add_saturated(sums.at[q][p], lookup(of_high, of.high[p]));
      }
    }
  }
}

// The sums of even and of odd rows, 16 bits each.
template <int Q>
struct WordSums {
  Words even[Q][PIECES], odd[Q][PIECES];
};

// Table sums of the rows for Q queries, of the high nibbles alone if so. The sums of `stretch` bytes of a code fit a byte.
template <int Q, bool HighOnly = false>
inline void sum_in_words(const uint8_t* block, int64_t width, const uint8_t* const* tables, int64_t stretch,
                         WordSums<Q>& sums) {
  for (int q = 0; q < Q; q++)
    for (int p = 0; p < PIECES; p++) sums.even[q][p] = sums.odd[q][p] = Words{};
  for (int64_t start = 0; start < width; start += stretch) {
    Bytes part[Q][PIECES] = {};
    for (int64_t c = start; c < std::min(width, start + stretch); c++) {
      Nibbles of(block + c * 64);
      // GCC 12 keeps the sums of several queries in memory rather than registers unless it is told to unroll
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        Bytes of_low = repeat(tables[q] + 32 * c), of_high = repeat(tables[q] + 32 * c + 16);
        for (int p = 0; p < PIECES; p++)
          part[q][p] += HighOnly ? lookup(of_high, of.high[p]) : lookup(of_low, of.low[p]) + lookup(of_high, of.high[p]);
      }
    }
    // as one number of 16 bits, two bytes are even + 256 odd: the odd ones are taken off at the end
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
      for (int p = 0; p < PIECES; p++) {
        sums.even[q][p] += (Words)part[q][p];
        sums.odd[q][p] += (Words)part[q][p] >> 8;
      }
  }
  for (int q = 0; q < Q; q++)
    for (int p = 0; p < PIECES; p++) sums.even[q][p] -= sums.odd[q][p] << 8;
}

// Bit r is set where the sum of row r is at most the limit.
inline uint64_t rows_below(const Words* evens, const Words* odds, int64_t limit) {
  uint64_t rows = 0;
  uint16_t most = (uint16_t)std::min<int64_t>(limit, 65535);
  for (int p = 0; p < PIECES; p++) {
    Words even = at_most(evens[p], most) & 0x00FF, odd = at_most(odds[p], most) & 0xFF00;
    rows |= high_bits((Bytes)(even | odd)) << (p * WIDTH % 64);
  }
  return rows;
}

template <int Q>
inline uint64_t rows_below(const ByteSums<Q>& sums, int q, int64_t limit) {
  uint64_t rows = 0;
  for (int p = 0; p < PIECES; p++)
    rows |= high_bits(at_most(sums.at[q][p], (uint8_t)std::min<int64_t>(limit, 255))) << (p * WIDTH % 64);
  return rows;
}

template <int Q>
inline uint64_t rows_below(const WordSums<Q>& sums, int q, int64_t limit) {
  return rows_below(sums.even[q], sums.odd[q], limit);
}

#if SCQ_AVX512
// For each of B blocks the rows whose sum over tables of 256 bytes, one for each byte of a code, is at most the limit.
template <int B>
SCQ_WIDE_LOOKUP inline void rows_below(const uint8_t* blocks, int64_t width, const uint8_t* tables, int64_t limit,
                                       uint64_t* rows) {
  Words even[B] = {}, odd[B] = {};
  for (int64_t c = 0; c < width; c++)
    for (int b = 0; b < B; b++) {
      Words found = (Words)wide_lookup(tables + 256 * c, load<Bytes>(blocks + (b * width + c) * 64));
      even[b] += found;
      odd[b] += found >> 8;
    }
  for (int b = 0; b < B; b++) {
    even[b] -= odd[b] << 8;
    rows[b] = rows_below(&even[b], &odd[b], limit);
  }
}

SCQ_WIDE_LOOKUP inline void rows_below(const uint8_t* blocks, int64_t count, int64_t width, const uint8_t* tables,
                                       int64_t limit, uint64_t* rows) {
  int64_t b = 0;
  for (; b + 4 <= count; b += 4) rows_below<4>(blocks + b * width * 64, width, tables, limit, rows + b);
  for (; b < count; b++) rows_below<1>(blocks + b * width * 64, width, tables, limit, rows + b);
}
#endif

template <int Q>
inline void store(const ByteSums<Q>& sums, int q, uint16_t* out) {
  uint8_t bytes[64];
  std::memcpy(bytes, sums.at[q], 64);
  for (int r = 0; r < 64; r++) out[r] = bytes[r];
}

template <int Q>
inline void store(const WordSums<Q>& sums, int q, uint16_t* out) {
  uint16_t even[32], odd[32];
  std::memcpy(even, sums.even[q], 64);
  std::memcpy(odd, sums.odd[q], 64);
  for (int r = 0; r < 32; r++) out[2 * r] = even[r], out[2 * r + 1] = odd[r];
}

}  // namespace scq::SCQ_ISA

// From codes row by row to blocks of 64 rows, byte by byte.
#pragma once
#include "vectors.h"

namespace scq::SCQ_ISA {

typedef uint8_t Sixteen __attribute__((vector_size(16)));

// Rows and columns of 16 x 16 bytes change places in four rounds; each interleaves rows i and i + 8.
inline void transpose(Sixteen* m) {
  Sixteen next[16];
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < 8; i++) {
      next[2 * i] = __builtin_shufflevector(m[i], m[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] =
          __builtin_shufflevector(m[i], m[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::memcpy(m, next, sizeof next);
  }
}

// Lay out rows as blocks, zeros after the last one. So many bytes `behind` the last row may be read, too.
inline void lay_out(const uint8_t* codes, int64_t rows, int64_t width, uint8_t* blocks, int64_t behind) {
  for (int64_t first = 0; first < rows; first += 64) {
    uint8_t* block = blocks + first * width;
    // 16 bytes from any byte of a row on: up to 15 beyond the last row of this block
    bool whole = first + 64 <= rows && (rows - first - 64) * width + behind >= 15;
    for (int64_t c = 0; c < width; c += 16) {
      int64_t columns = width - c < 16 ? width - c : 16;
      for (int64_t r = 0; r < 64; r += 16) {
        Sixteen m[16];
        for (int64_t i = 0; i < 16; i++) {
          const uint8_t* from = codes + (first + r + i) * width + c;
          if (whole) {
            m[i] = load<Sixteen>(from);
          } else {
            m[i] = Sixteen{};
            if (first + r + i < rows) std::memcpy(&m[i], from, columns);
          }
        }
        transpose(m);
        for (int64_t i = 0; i < columns; i++) std::memcpy(block + (c + i) * 64 + r, &m[i], 16);
      }
    }
  }
}

}  // namespace scq::SCQ_ISA

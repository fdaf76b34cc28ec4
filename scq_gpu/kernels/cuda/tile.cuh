// Tiles of a row-major matrix in shared memory, for the encode kernels: X (n, d) and W' (n_bits, d) alike.
//
// A tile holds TILE_K columns of some rows as 32-bit words (one float32 or two 16-bit numbers each). Four words of padding
// a row keep 16-byte alignment and let eight neighboring rows be read without bank conflicts. Beyond the edges of the
// matrix a tile is zero.
#include "ptx.cuh"

#define THREADS 256
#if defined(X_FLOAT32)
typedef uint32_t Element;  // bits of a number; arithmetic goes through load4 or the tensor cores
#else
typedef uint16_t Element;
#endif

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

template <typename E> struct Matrix {
    const E* data;
    int64_t rows, stride;  // stride in elements
    int columns;
    int vector;            // whether every row starts on a 16-byte boundary
};

template <typename E, int ROWS> struct Tile {
    static constexpr int WORDS = TILE_K * sizeof(E) / 4, PITCH = WORDS + 4;
    uint32_t word[ROWS][PITCH];
};

// Loads columns [column, column + TILE_K) of the rows from `row` on; the caller commits, waits and synchronises.
// INTERLEAVED stores matrix row 8 a + b as tile row b (ROWS / 8) + a: threads a = 0, 1, ... that own eight adjacent rows
// each then read neighboring tile rows.
template <bool INTERLEAVED, typename E, int ROWS>
__device__ __forceinline__ void load_tile(Tile<E, ROWS>& tile, const Matrix<E>& A, int64_t row, int column) {
    constexpr int CHUNK = 16 / sizeof(E), CHUNKS = TILE_K / CHUNK, PER_WORD = 4 / sizeof(E);
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        const int64_t from_row = row + (INTERLEAVED ? r % (ROWS / 8) * 8 + r / (ROWS / 8) : r);
        const int from_column = column + c * CHUNK;
        const int valid = from_row < A.rows ? min(A.columns - from_column, CHUNK) : 0;
        const E* from = A.data + from_row * A.stride + from_column;
        uint32_t* to = &tile.word[r][4 * c];
        if (A.vector && valid == CHUNK) {
            COPY16(to, from);
            continue;
        }
#pragma unroll 1
        for (int w = 0; w < 4; ++w) {  // edges and unaligned rows; rolled up, for registers are scarce
            uint32_t word = 0;
#pragma unroll
            for (int e = 0; e < PER_WORD; ++e)
                if (w * PER_WORD + e < valid) word |= uint32_t(from[w * PER_WORD + e]) << (16 * e);
            to[w] = word;
        }
    }
}

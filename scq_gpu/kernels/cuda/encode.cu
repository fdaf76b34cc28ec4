// codes = pack(X W >= t) in float32: every product a fused multiply-add, on every architecture.
//
//   X      (n, d)       float32, float16 or bfloat16, row-major, rows x_stride elements apart, any alignment
//   W      (n_bits, d)  float32: the transpose of the map, rows w_stride elements apart
//   t      (n_bits,)    float32
//   codes  (n, ceil(n_bits / 8)) bytes; bit k in byte k / 8 at position k % 8, padding bits 0
//   flag   (1,) int32, 0 before: set to 1 if a product x . w is NaN or inf. A NaN or inf in a row makes all its products
//          so, whatever W (inf * 0 is NaN): X is looked at for the price of a comparison per product, not per element.
//
//   block  256 threads: TILE_ROWS rows x TILE_BITS bits. Thread (across, down) computes the byte of bits
//          8 across ... 8 across + 7 for ROWS_PER_THREAD rows, so a byte is complete in one thread.
//   grid   ceil(n / TILE_ROWS) * ceil(n_bits / TILE_BITS), tiles of bits fastest: blocks that share rows run together and
//          X comes from memory once.
//   shared STAGES tiles of X and of W in a ring; a tile is copied while the one before it is multiplied.
//
// Compiled with -DX_FLOAT32 | X_FLOAT16 | X_BFLOAT16, -DTILE_BITS, -DROWS_PER_THREAD, -DTILE_K, -DSTAGES.
#include "tile.cuh"

#define ACROSS (TILE_BITS / 8)
#define DOWN (THREADS / ACROSS)
#define TILE_ROWS (DOWN * ROWS_PER_THREAD)

struct Stage {
    Tile<Element, TILE_ROWS> x;
    Tile<uint32_t, TILE_BITS> w;
};

__device__ __forceinline__ void load4(float (&x)[4], const uint32_t* words) {  // four float32
    const uint4 q = *reinterpret_cast<const uint4*>(words);
    x[0] = __uint_as_float(q.x);
    x[1] = __uint_as_float(q.y);
    x[2] = __uint_as_float(q.z);
    x[3] = __uint_as_float(q.w);
}

__device__ __forceinline__ float narrow_to_float(uint32_t bits) {  // the low 16 bits
#if defined(X_FLOAT16)
    return half_to_float(uint16_t(bits));
#else
    return __uint_as_float(bits << 16);
#endif
}

__device__ __forceinline__ void load4_x(float (&x)[4], const uint32_t* row, int k) {  // elements k ... k + 3 of a row of X
#if defined(X_FLOAT32)
    load4(x, row + k);
#else
    const uint2 q = *reinterpret_cast<const uint2*>(row + k / 2);
    x[0] = narrow_to_float(q.x);
    x[1] = narrow_to_float(q.x >> 16);
    x[2] = narrow_to_float(q.y);
    x[3] = narrow_to_float(q.y >> 16);
#endif
}

__device__ __forceinline__ void multiply(float (&sum)[ROWS_PER_THREAD][8], const Stage& s, int across, int down) {
#pragma unroll 1  // unrolled further, the 128-bit tile spills registers
    for (int k = 0; k < TILE_K; k += 4) {
        float x[ROWS_PER_THREAD][4], w[4];
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; ++i) load4_x(x[i], s.x.word[down + i * DOWN], k);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            load4(w, &s.w.word[j * ACROSS + across][k]);
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j] = fmaf(x[i][e], w[e], sum[i][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
encode_exact(const Element* __restrict__ X, const uint32_t* __restrict__ W, const float* __restrict__ t,
             uint8_t* __restrict__ codes, int* __restrict__ flag, int64_t n, int64_t x_stride, int64_t w_stride, int d,
             int n_bits, int x_vector, int w_vector) {
    DYNAMIC_SHARED(Stage, stages);
    const int bit_tiles = (n_bits + TILE_BITS - 1) / TILE_BITS, n_bytes = (n_bits + 7) / 8;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    const int64_t row = int64_t(blockIdx.x / bit_tiles) * TILE_ROWS;
    const int bit = int(blockIdx.x % bit_tiles) * TILE_BITS;
    const Matrix<Element> x_matrix = {X, n, x_stride, d, x_vector};
    const Matrix<uint32_t> w_matrix = {W, n_bits, w_stride, d, w_vector};
    const int k_tiles = (d + TILE_K - 1) / TILE_K;

    auto load_stage = [&](int k_tile) {
        if (k_tile < k_tiles) {
            Stage& s = stages[k_tile % STAGES];
            load_tile<false>(s.x, x_matrix, row, k_tile * TILE_K);
            load_tile<true>(s.w, w_matrix, bit, k_tile * TILE_K);
        }
        COPY_COMMIT();
    };

    float sum[ROWS_PER_THREAD][8] = {};
#pragma unroll 1
    for (int k_tile = 0; k_tile < STAGES - 1; ++k_tile) load_stage(k_tile);
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        COPY_WAIT(STAGES - 2);
        __syncthreads();  // this tile has landed for all threads, and nobody still reads the one overwritten next
        load_stage(k_tile + STAGES - 1);
        multiply(sum, stages[k_tile % STAGES], across, down);
    }

    const int byte = bit / 8 + across;
    if (byte >= n_bytes) return;
    float threshold[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) threshold[j] = 8 * byte + j < n_bits ? t[8 * byte + j] : 0.f;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
        uint32_t code = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            code |= uint32_t(8 * byte + j < n_bits && sum[i][j] >= threshold[j]) << j;
            finite &= is_finite(sum[i][j]);
        }
        const int64_t code_row = row + down + i * DOWN;
        if (code_row < n) codes[code_row * n_bytes + byte] = uint8_t(code);
    }
    if (!finite) atomicOr(flag, 1);
}

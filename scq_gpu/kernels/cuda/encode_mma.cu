// codes = pack(X W >= t) on tensor cores, sums in float32.
//
//   X      (n, d)       row-major, rows x_stride elements apart, any alignment: float32 (-DX_FLOAT32, multiplied as TF32),
//                       float16 (-DX_FLOAT16) or bfloat16 (-DX_BFLOAT16)
//   W      (n_bits, d)  the transpose of the map in the type of X, rows w_stride elements apart
//   t      (n_bits,)    float32
//   codes  (n, ceil(n_bits / 8)) bytes; bit k in byte k / 8 at position k % 8, padding bits 0
//   flag   (1,) int32, 0 before: set to 1 if a product x . w is NaN or inf, as in encode.cu
//
//   block  256 threads: 128 rows x TILE_BITS bits; 4 x 2 warps of 32 rows x TILE_BITS / 2 bits
//   grid   ceil(n / 128) * ceil(n_bits / TILE_BITS), tiles of bits fastest, as in encode.cu
//   shared STAGES tiles of X and of W in a ring of asynchronous copies
//
// -DPASSES=1 rounds X and W to TF32. -DPASSES=3 splits each number into a high and a low TF32 half and adds
// high*high + high*low + low*high: the error of float32 for three times the multiplications. Tensor cores cut off their
// sums instead of rounding them, so each 16 columns have an accumulator of their own, which float32 additions add up.
// Compiled with one of the -DX_ above, -DTILE_BITS, -DPASSES, -DTILE_K, -DSTAGES.
#include "tile.cuh"
#include "fragments.cuh"

#define WARPS_DOWN 4
#define TILE_ROWS (WARPS_DOWN * 32)
#define WARP_BITS (TILE_BITS / 2)
#define N_OCTETS (WARP_BITS / 8)              // groups of 8 bits: one byte of code, one mma wide
#define WORD_BYTES (N_OCTETS < 4 ? N_OCTETS : 4)

struct Stage {
    Tile<Element, TILE_ROWS> x;
    Tile<Element, TILE_BITS> w;
};

// To the nearest TF32: 13 bits fewer. FINITE says that there is no NaN or inf among them: rounding would turn a NaN of all
// ones into zero.
template <bool FINITE, int N> __device__ __forceinline__ void round_tf32(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        x[i] = (x[i] + (FINITE || is_finite(__uint_as_float(x[i])) ? 0x1000u : 0u)) & 0xffffe000u;
}

template <bool FINITE, int N> __device__ __forceinline__ void split_tf32(uint32_t (&high)[N], uint32_t (&low)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) low[i] = high[i];
    round_tf32<FINITE>(high);
#pragma unroll
    for (int i = 0; i < N; ++i) low[i] = __float_as_uint(__uint_as_float(low[i]) - __uint_as_float(high[i]));
}

template <int N>
__device__ __forceinline__ void load_a(uint32_t (&a)[N][2][4], const Stage& s, int row, int k, int lane) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r) a[n][i][r] = s.x.word[row + 16 * i + a_row(lane, r)][k + 8 * n + a_word(lane, r)];
}

template <int N>
__device__ __forceinline__ void load_b(uint32_t (&b)[N][2], const Stage& s, int bit, int k, int lane) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) b[n][r] = s.w.word[bit + b_column(lane)][k + 8 * n + b_word(lane, r)];
}

#if PASSES == 3
__device__ __forceinline__ void multiply(float (&sum)[2][N_OCTETS][4], const Stage& s, int warp_row, int warp_bit, int lane) {
#pragma unroll
    for (int k = 0; k < s.x.WORDS; k += 16) {
        uint32_t a[2][2][4], a_low[2][2][4];
        load_a(a, s, warp_row, k, lane);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) split_tf32<false>(a[n][i], a_low[n][i]);
#pragma unroll
        for (int j = 0; j < N_OCTETS; ++j) {
            uint32_t b[2][2], b_low[2][2];
            load_b(b, s, warp_bit + 8 * j, k, lane);
            float stage[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                split_tf32<true>(b[i], b_low[i]);
#pragma unroll
                for (int e = 0; e < 4; ++e) stage[i][e] = 0.f;
            }
#pragma unroll
            for (int n = 0; n < 2; ++n)  // the small products first: less of them is cut off
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    MMA_TF32(stage[i], a_low[n][i], b[n]);
                    MMA_TF32(stage[i], a[n][i], b_low[n]);
                }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) MMA_TF32(stage[i], a[n][i], b[n]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += stage[i][e];
        }
    }
}
#else
__device__ __forceinline__ void multiply(float (&sum)[2][N_OCTETS][4], const Stage& s, int warp_row, int warp_bit, int lane) {
#pragma unroll
    for (int k = 0; k < s.x.WORDS; k += 8) {
        uint32_t a[1][2][4];
        load_a(a, s, warp_row, k, lane);
#if defined(X_FLOAT32)
#pragma unroll
        for (int i = 0; i < 2; ++i) round_tf32<false>(a[0][i]);
#endif
#pragma unroll
        for (int j = 0; j < N_OCTETS; ++j) {
            uint32_t b[1][2];
            load_b(b, s, warp_bit + 8 * j, k, lane);
#if defined(X_FLOAT32)
            round_tf32<true>(b[0]);
#endif
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#if defined(X_FLOAT16)
                MMA_F16(sum[i][j], a[0][i], b[0]);
#elif defined(X_BFLOAT16)
                MMA_BF16(sum[i][j], a[0][i], b[0]);
#else
                MMA_TF32(sum[i][j], a[0][i], b[0]);
#endif
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 2)
encode_mma(const Element* __restrict__ X, const Element* __restrict__ W, const float* __restrict__ t,
           uint8_t* __restrict__ codes, int* __restrict__ flag, int64_t n, int64_t x_stride, int64_t w_stride, int d,
           int n_bits, int x_vector, int w_vector) {
    DYNAMIC_SHARED(Stage, stages);
    const int bit_tiles = (n_bits + TILE_BITS - 1) / TILE_BITS, n_bytes = (n_bits + 7) / 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = lane % 4;
    const int warp_row = warp % WARPS_DOWN * 32, warp_bit = warp / WARPS_DOWN * WARP_BITS;
    const int64_t row = int64_t(blockIdx.x / bit_tiles) * TILE_ROWS;
    const int bit = int(blockIdx.x % bit_tiles) * TILE_BITS;
    const Matrix<Element> x_matrix = {X, n, x_stride, d, x_vector};
    const Matrix<Element> w_matrix = {W, n_bits, w_stride, d, w_vector};
    const int k_tiles = (d + TILE_K - 1) / TILE_K;

    auto load_stage = [&](int k_tile) {
        if (k_tile < k_tiles) {
            Stage& s = stages[k_tile % STAGES];
            load_tile<false>(s.x, x_matrix, row, k_tile * TILE_K);
            load_tile<false>(s.w, w_matrix, bit, k_tile * TILE_K);
        }
        COPY_COMMIT();
    };

    float sum[2][N_OCTETS][4] = {};
#pragma unroll 1
    for (int k_tile = 0; k_tile < STAGES - 1; ++k_tile) load_stage(k_tile);
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        COPY_WAIT(STAGES - 2);
        __syncthreads();  // this tile has landed for all threads, and nobody still reads the one overwritten next
        load_stage(k_tile + STAGES - 1);
        __syncwarp();  // edges may have split the warp; mma wants it whole
        multiply(sum, stages[k_tile % STAGES], warp_row, warp_bit, lane);
    }

    // A lane holds two bits of each octet, for two rows of each 16. The four lanes of a row join their bits; then lane
    // `quarter` of them writes byte `quarter` of the word.
    bool finite = true;
#pragma unroll
    for (int j = 0; j < N_OCTETS; j += WORD_BYTES) {
        uint32_t word[4] = {};  // of rows 16 (r / 2) + c_row(lane, r % 2 * 2) of the warp's 32
#pragma unroll
        for (int b = 0; b < WORD_BYTES; ++b)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = bit + warp_bit + 8 * (j + b) + c_column(lane, e);
                const float threshold = k < n_bits ? t[k] : 0.f;
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float product = sum[r / 2][j + b][r % 2 * 2 + e];
                    word[r] |= uint32_t(k < n_bits && product >= threshold) << (8 * b + c_column(lane, e));
                    finite &= is_finite(product);
                }
            }
        const int byte = (bit + warp_bit) / 8 + j + quarter;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            word[r] |= __shfl_xor_sync(0xffffffffu, word[r], 1);
            word[r] |= __shfl_xor_sync(0xffffffffu, word[r], 2);
            const int64_t code_row = row + warp_row + 16 * (r / 2) + c_row(lane, r % 2 * 2);
            if (quarter < WORD_BYTES && byte < n_bytes && code_row < n)
                codes[code_row * n_bytes + byte] = uint8_t(word[r] >> (8 * quarter));
        }
    }
    if (!finite) atomicOr(flag, 1);
}

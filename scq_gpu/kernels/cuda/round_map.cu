// A linear map in the 16-bit type of features, as encode_mma.cu multiplies it.
//
//   W       (d, n_bits)  float32, element (k, bit) at k * row_stride + bit * column_stride
//   t       (n_bits,)    float32
//   Wt      (n_bits, d)  float16 (-DX_FLOAT16) or bfloat16 (-DX_BFLOAT16), rounded to nearest, contiguous
//   scaled  (n_bits,)    float32: what products with Wt are compared with
//
// float16 has a small range, so a column and its threshold are multiplied by the power of two that brings the largest
// number of the column to between 1/2 and 1, which changes no bit of a code.
//
//   block   256 threads: one bit
//   grid    n_bits
//   shared  a word for each warp
#include "ptx.cuh"

#define THREADS 256

__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float(uint32_t(e + 127) << 23); }

extern "C" __global__ void __launch_bounds__(THREADS, 2)
round_map(const float* __restrict__ W, const float* __restrict__ t, uint16_t* __restrict__ Wt, float* __restrict__ scaled,
          int64_t row_stride, int64_t column_stride, int d) {
    const float* w = W + blockIdx.x * column_stride;
    uint16_t* to = Wt + int64_t(blockIdx.x) * d;
#if defined(X_FLOAT16)
    DYNAMIC_SHARED(uint32_t, largest_of_warp);
    uint32_t largest = 0;  // bits of positive numbers are in their order
    for (int k = threadIdx.x; k < d; k += THREADS) largest = max(largest, __float_as_uint(w[k * row_stride]) & 0x7fffffffu);
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();  // every warp knows its largest
    for (int warp = 0; warp < THREADS / 32; ++warp) largest = max(largest, largest_of_warp[warp]);
    const int exponent = largest ? 126 - int(largest >> 23) : 0, half = exponent / 2;
    const float first = power_of_two(half), second = power_of_two(exponent - half);  // one may be too large for float32
    for (int k = threadIdx.x; k < d; k += THREADS) to[k] = float_to_half(w[k * row_stride] * first * second);
    if (threadIdx.x == 0) scaled[blockIdx.x] = t[blockIdx.x] * first * second;
#else
    for (int k = threadIdx.x; k < d; k += THREADS) {
        const uint32_t bits = __float_as_uint(w[k * row_stride]);
        to[k] = uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    if (threadIdx.x == 0) scaled[blockIdx.x] = t[blockIdx.x];
#endif
}

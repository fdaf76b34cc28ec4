// codes[row, g] = the cell c of byte g with the largest score y . c - half, in float32; the lowest of equal ones.
//
//   Y      (n, bytes * width)         float32, row-major, rows y_stride elements apart: y is elements g width ... of a row
//   cells  (bytes, n_cells, width)    float32, contiguous; at most 256 cells
//   halves (bytes, n_cells)           float32, contiguous: half of what is added to the distance of each cell
//   codes  (n, bytes)                 uint8
//   flag   (1,) int32, 0 before: set to 1 if an element of Y is NaN or inf
//
//   block  256 threads: 256 ROWS_PER_THREAD rows of one byte. A thread keeps its y's in registers, and goes through the
//          cells, which all threads read at once.
//   grid   ceil(n / (256 ROWS_PER_THREAD)) * bytes, bytes fastest: blocks that share rows run together
//   shared the cells of a byte, filled up with zeros to WIDTH numbers, and their halves
//
// Compiled with -DWIDTH, a multiple of 4 of at least width, and -DROWS_PER_THREAD.
#include "ptx.cuh"

#define THREADS 256
#define CELLS 256

struct Cells {
    float cell[CELLS][WIDTH];
    float half[CELLS];
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
nearest_cells(const float* __restrict__ Y, const float* __restrict__ cells, const float* __restrict__ halves,
              uint8_t* __restrict__ codes, int* __restrict__ flag, int64_t n, int64_t y_stride, int n_bytes, int n_cells,
              int width) {
    DYNAMIC_SHARED(Cells, s);
    const int g = int(blockIdx.x % n_bytes);
    const int64_t first = int64_t(blockIdx.x / n_bytes) * THREADS * ROWS_PER_THREAD + threadIdx.x;
    for (int i = threadIdx.x; i < n_cells * WIDTH; i += THREADS) {
        const int c = i / WIDTH, k = i % WIDTH;
        s->cell[c][k] = k < width ? cells[(int64_t(g) * n_cells + c) * width + k] : 0.f;
    }
    for (int c = threadIdx.x; c < n_cells; c += THREADS) s->half[c] = halves[g * n_cells + c];

    float y[ROWS_PER_THREAD][WIDTH];
    bool finite = true;
#pragma unroll
    for (int r = 0; r < ROWS_PER_THREAD; ++r) {
        const int64_t row = first + r * THREADS;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            y[r][k] = row < n && k < width ? Y[row * y_stride + g * width + k] : 0.f;
            finite &= (__float_as_uint(y[r][k]) & 0x7f800000u) != 0x7f800000u;
        }
    }
    __syncthreads();  // the cells are complete

    float best[ROWS_PER_THREAD];
    int code[ROWS_PER_THREAD] = {};
#pragma unroll
    for (int r = 0; r < ROWS_PER_THREAD; ++r) best[r] = __uint_as_float(0xff800000u);  // less than any score
#pragma unroll 1
    for (int c = 0; c < n_cells; ++c) {
        float score[ROWS_PER_THREAD];
#pragma unroll
        for (int r = 0; r < ROWS_PER_THREAD; ++r) score[r] = -s->half[c];
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
            const uint4 q = *reinterpret_cast<const uint4*>(&s->cell[c][k]);
            const float x[4] = {__uint_as_float(q.x), __uint_as_float(q.y), __uint_as_float(q.z), __uint_as_float(q.w)};
#pragma unroll
            for (int r = 0; r < ROWS_PER_THREAD; ++r)
#pragma unroll
                for (int e = 0; e < 4; ++e) score[r] = fmaf(y[r][k + e], x[e], score[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS_PER_THREAD; ++r)
            if (score[r] > best[r]) {
                best[r] = score[r];
                code[r] = c;
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS_PER_THREAD; ++r) {
        const int64_t row = first + r * THREADS;
        if (row < n) codes[row * n_bytes + g] = uint8_t(code[r]);
    }
    if (!finite) atomicOr(flag, 1);
}

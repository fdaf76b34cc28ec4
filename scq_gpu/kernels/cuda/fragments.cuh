// Where a lane finds its words of an mma: A (16 rows) and B (8 columns) of 8 words a row, C (16 x 8) of sums.
// tests/kernels/test_cuda_fragments.py compares them with NVIDIA's own, element by element.
__device__ __forceinline__ constexpr int a_row(int lane, int i) { return lane / 4 + 8 * (i % 2); }
__device__ __forceinline__ constexpr int a_word(int lane, int i) { return lane % 4 + 4 * (i / 2); }
__device__ __forceinline__ constexpr int b_column(int lane) { return lane / 4; }
__device__ __forceinline__ constexpr int b_word(int lane, int i) { return lane % 4 + 4 * i; }
__device__ __forceinline__ constexpr int c_row(int lane, int i) { return lane / 4 + 8 * (i / 2); }
__device__ __forceinline__ constexpr int c_column(int lane, int i) { return 2 * (lane % 4) + i % 2; }

// The next column of columnwise OnE: the search over tau and v(tau), orthonormal.py's _search, in one launch.
//
//   gap      (D) REAL per problem: lam - min(lam); problems may share it (gap_stride 0)
//   m        (D) REAL per problem, m_stride apart
//   V        (k, D) REAL per problem, rows contiguous, problems V_stride apart: the earlier columns
//   bracket  (problems, 3) REAL: lo, hi, and where to look first
//   tau, v   (problems) and (problems, D) REAL: the answers
//   block    256 threads, one problem. Shared memory: z, v, w (D), A (k, k), c (k) and a sum for each warp.
//   grid     problems
//
// Compiled with -DREAL=float or double, -DEPS=machine epsilon.

#define THREADS 256
#define WARPS (THREADS / 32)
#define ALL_LANES 0xffffffffu

__device__ REAL warp_sum(REAL x) {
    for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

struct Problem {
    const REAL *gap, *V;
    REAL *z, *A, *c, *sums;
    int D, k;

    __device__ REAL dot(const REAL* x, const REAL* y) const {                // over the block, the same in every thread
        REAL sum = 0;
        for (int d = threadIdx.x; d < D; d += THREADS) sum += x[d] * y[d];
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (int i = 0; i < WARPS; ++i) sum += sums[i];
        __syncthreads();
        return sum;
    }

    __device__ void factorize(REAL tau) const {                              // z, and the Cholesky factor of V Z V'
        for (int d = threadIdx.x; d < D; d += THREADS) z[d] = 1 / (gap[d] + tau);
        __syncthreads();
        for (int pair = threadIdx.x / 32; pair < k * k; pair += WARPS) {
            const int i = pair / k, j = pair % k;
            if (j > i) continue;
            REAL sum = 0;
            for (int d = threadIdx.x % 32; d < D; d += 32) sum += V[i * D + d] * z[d] * V[j * D + d];
            sum = warp_sum(sum);
            if (i == j && sum == 0) sum = 1;                                 // a column whose search failed may be 0
            if (threadIdx.x % 32 == 0) A[i * k + j] = sum;
        }
        __syncthreads();
        for (int j = 0; j < k; ++j) {
            const REAL pivot = sqrt(A[j * k + j]);
            __syncthreads();
            for (int i = j + threadIdx.x; i < k; i += THREADS) A[i * k + j] = i == j ? pivot : A[i * k + j] / pivot;
            __syncthreads();
            const int left = k - j - 1;
            for (int e = threadIdx.x; e < left * left; e += THREADS) {
                const int i = j + 1 + e / left, l = j + 1 + e % left;
                if (l <= i) A[i * k + l] -= A[i * k + j] * A[l * k + j];
            }
            __syncthreads();
        }
    }

    __device__ void apply(const REAL* x, REAL* y) const {                    // y = Z (x - V' phi),  V Z V' phi = V Z x
        for (int i = threadIdx.x / 32; i < k; i += WARPS) {
            REAL sum = 0;
            for (int d = threadIdx.x % 32; d < D; d += 32) sum += V[i * D + d] * z[d] * x[d];
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) c[i] = sum;
        }
        __syncthreads();
        for (int j = 0; j < k; ++j) {                                        // C c = c
            if (threadIdx.x == 0) c[j] /= A[j * k + j];
            __syncthreads();
            for (int i = j + 1 + threadIdx.x; i < k; i += THREADS) c[i] -= A[i * k + j] * c[j];
            __syncthreads();
        }
        for (int j = k - 1; j >= 0; --j) {                                   // C' phi = c
            if (threadIdx.x == 0) c[j] /= A[j * k + j];
            __syncthreads();
            for (int i = threadIdx.x; i < j; i += THREADS) c[i] -= A[j * k + i] * c[j];
            __syncthreads();
        }
        for (int d = threadIdx.x; d < D; d += THREADS) {
            REAL sum = x[d];
            for (int i = 0; i < k; ++i) sum -= c[i] * V[i * D + d];
            y[d] = z[d] * sum;
        }
        __syncthreads();
    }
};

extern "C" __global__ void find_column(const REAL* gap, const REAL* m, const REAL* V, const REAL* bracket,
                                       REAL* tau_out, REAL* v_out, long long gap_stride, long long m_stride,
                                       long long V_stride, int D, int k, int steps) {
    extern __shared__ double shared[];
    REAL* z = (REAL*)shared;
    REAL *v = z + D, *w = v + D, *A = w + D, *c = A + k * k;
    const long long problem = blockIdx.x;
    const Problem p{gap + problem * gap_stride, V + problem * V_stride, z, A, c, c + k, D, k};
    m += problem * m_stride;
    REAL lo = bracket[3 * problem], hi = bracket[3 * problem + 1], tau = bracket[3 * problem + 2];
    const REAL slack = sqrt(REAL(EPS));

    for (int step = 0; step < steps; ++step) {
        p.factorize(tau);
        p.apply(m, v);
        p.apply(v, w);
        const REAL p0 = p.dot(v, v), p1 = p.dot(v, w), p2 = p.dot(w, w);
        if (p0 >= 1) lo = tau > lo ? tau : lo;
        else hi = tau < hi ? tau : hi;
        const REAL x = p1 / (p2 > 0 ? p2 : 1), rest = p0 - p1 * x;
        const REAL model = tau + x * (sqrt(rest < 1 ? p1 * x / (1 - rest) : REAL(1)) - 1);
        const bool usable = rest < 1 && model > lo * (1 - slack) && model < hi * (1 + slack);
        tau = usable ? (model < lo ? lo : model > hi ? hi : model) : sqrt(lo) * sqrt(hi);
    }
    p.factorize(tau);
    p.apply(m, v);
    for (int d = threadIdx.x; d < D; d += THREADS) v_out[problem * D + d] = v[d];
    if (threadIdx.x == 0) tau_out[problem] = tau;
}

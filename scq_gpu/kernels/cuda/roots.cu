// G^(-1/2) of small symmetric matrices by Newton-Schulz steps: roots.py's by_products, in one launch.
//
//   G, Z     (problems, L, L) REAL, row-major
//   scratch  (problems, 4, L, L) REAL, or null where that fits in shared memory
//   block    256 threads, one problem. A product is L^3 multiply-adds of one multiprocessor, which for L <= 64 takes
//            about as long as launching it would.
//   grid     problems
//
// Compiled with -DREAL=float or double, -DEPS=machine epsilon, -DSTEEPEST=the largest a.

__device__ void multiply(const REAL* A, const REAL* B, REAL* C, int L) {
    for (int e = threadIdx.x; e < L * L; e += blockDim.x) {
        const REAL* a = A + e / L * L;
        const REAL* b = B + e % L;
        REAL sum = 0;
        for (int k = 0; k < L; ++k) sum += a[k] * b[k * L];
        C[e] = sum;
    }
    __syncthreads();
}

__device__ void three_minus(const REAL* Y, REAL factor, REAL* R, int L) {   // factor (3 I - Y)
    for (int e = threadIdx.x; e < L * L; e += blockDim.x) R[e] = factor * ((e / L == e % L ? 3 : 0) - Y[e]);
    __syncthreads();
}

extern "C" __global__ void inverse_roots(const REAL* __restrict__ G, REAL* __restrict__ out, REAL* scratch, int L) {
    extern __shared__ double shared[];
    const int size = L * L;
    G += (long long)blockIdx.x * size;
    out += (long long)blockIdx.x * size;
    REAL* Y = scratch ? scratch + (long long)blockIdx.x * 4 * size : (REAL*)shared;
    REAL *Z = Y + size, *R = Z + size, *T = R + size;

    for (int i = threadIdx.x; i < L; i += blockDim.x) {
        REAL sum = 0;
        for (int j = 0; j < L; ++j) sum += G[i * L + j] < 0 ? -G[i * L + j] : G[i * L + j];
        T[i] = sum;
    }
    __syncthreads();
    REAL norm = 0;
    for (int i = 0; i < L; ++i) norm = T[i] > norm ? T[i] : norm;
    if (!(norm > 0)) norm = 1;
    __syncthreads();

    const double floor = 4 * L * EPS;
    double low = sqrt(floor);
    double a = fmin(sqrt(3 / (1 + low + low * low)), STEEPEST);
    for (int e = threadIdx.x; e < size; e += blockDim.x) {
        const REAL on_diagonal = e / L == e % L;
        Y[e] = REAL(a * a / (1 + floor)) * (G[e] / norm + REAL(floor) * on_diagonal);
        Z[e] = REAL(a) * on_diagonal;
    }
    __syncthreads();
    while (true) {
        const double at_low = a * low * (3 - a * low * a * low) / 2, at_one = a * (3 - a * a) / 2;
        low = fmin(at_low, at_one);
        const bool last = 1 - low <= 1e-8;
        a = last ? 1 : fmin(sqrt(3 / (1 + low + low * low)), STEEPEST);
        three_minus(Y, REAL(a / 2), R, L);
        multiply(R, Y, T, L);
        multiply(T, R, Y, L);
        multiply(Z, R, T, L);
        REAL* swap = Z;
        Z = T, T = swap;
        if (last) break;
    }
    for (int e = threadIdx.x; e < size; e += blockDim.x) {
        Z[e] /= REAL(sqrt(1 + floor));
        Y[e] = G[e] / norm;
    }
    __syncthreads();
    multiply(Z, Y, T, L);
    multiply(T, Z, R, L);
    three_minus(R, REAL(0.5) / sqrt(norm), T, L);
    multiply(Z, T, out, L);
}

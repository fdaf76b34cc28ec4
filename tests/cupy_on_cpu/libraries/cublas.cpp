// Stands in for libcublas.so.13, by OpenBLAS: what CuPy's arrays of real numbers use. Column-major, as cuBLAS is.
//
// Not there: complex types; TF32 and other roundings (the math mode is kept and ignored); cuBLAS's order of sums, so
// results differ from a GPU's by rounding. float16 and bfloat16 products are summed in float32.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "device.h"
#include "lapack.h"

using standin::count;
using standin::enqueue;

namespace {
struct Handle {
    void* stream = nullptr;
    int pointers = 0;  // 1: scalars are on the device
    int math = 0;
};
enum { OK = 0, INVALID = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };
const char* op(int o) { return o == 0 ? "N" : "T"; }
void called(const char* name) {
    count("cublas calls");
    count((std::string("cublas ") + name).c_str());
}
bool reachable(const void* a, const void* b, const void* c) {
    using standin::within_reach;
    return within_reach(a) && within_reach(b) && within_reach(c);
}

// A scalar that is on the host now, or on the device later.
template <class T>
struct Scalar {
    T value{};
    const T* later = nullptr;
    Scalar(const Handle* h, const T* p) {
        if (h->pointers)
            later = p;
        else
            value = *p;
    }
    T get() const { return later ? *later : value; }
};
template <class T>
void gemm_now(int ta, int tb, int m, int n, int k, T alpha, const T* A, int lda, const T* Bm, int ldb, T beta, T* C,
              int ldc) {
    if (m && n) Lapack<T>::gemm(op(ta), op(tb), &m, &n, &k, &alpha, A, &lda, Bm, &ldb, &beta, C, &ldc);
}
template <class T>
int gemm(const char* name, Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* A, int lda,
         const T* Bm, int ldb, const T* beta, T* C, int ldc) {
    called(name);
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return INVALID;
    if (!reachable(A, Bm, C)) return EXECUTION_FAILED;
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] { gemm_now(ta, tb, m, n, k, a.get(), A, lda, Bm, ldb, b.get(), C, ldc); });
    return OK;
}
// ---- types of the *Ex functions
enum { R32F = 0, R64F = 1, R16F = 2, R16BF = 14 };
size_t item(int type) { return type == R64F ? 8 : type == R32F ? 4 : 2; }
float load(const void* p, int type, size_t i) {
    if (type == R32F) return static_cast<const float*>(p)[i];
    if (type == R16F) return float(static_cast<const _Float16*>(p)[i]);
    const uint32_t u = uint32_t(static_cast<const uint16_t*>(p)[i]) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
void store(void* p, int type, size_t i, float f) {
    if (type == R32F) {
        static_cast<float*>(p)[i] = f;
        return;
    }
    if (type == R16F) {
        static_cast<_Float16*>(p)[i] = _Float16(f);
        return;
    }
    uint32_t u;
    memcpy(&u, &f, 4);
    static_cast<uint16_t*>(p)[i] = uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
std::vector<float> dense(const void* p, int type, int rows, int columns, int ld) {
    std::vector<float> out(size_t(rows) * size_t(columns));
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i)
            out[size_t(j) * size_t(rows) + size_t(i)] = load(p, type, size_t(j) * size_t(ld) + size_t(i));
    return out;
}
void gemm_ex_now(int ta, int tb, int m, int n, int k, double alpha, const void* A, int at, int lda, const void* Bm,
                 int bt, int ldb, double beta, void* C, int ct, int ldc) {
    if (at == R64F)
        return gemm_now<double>(ta, tb, m, n, k, alpha, static_cast<const double*>(A), lda,
                                static_cast<const double*>(Bm), ldb, beta, static_cast<double*>(C), ldc);
    if (at == R32F && bt == R32F && ct == R32F)
        return gemm_now<float>(ta, tb, m, n, k, float(alpha), static_cast<const float*>(A), lda,
                               static_cast<const float*>(Bm), ldb, float(beta), static_cast<float*>(C), ldc);
    const int ar = ta ? k : m, ac = ta ? m : k, br = tb ? n : k, bc = tb ? k : n;
    const auto a = dense(A, at, ar, ac, lda), b = dense(Bm, bt, br, bc, ldb);
    std::vector<float> c(size_t(m) * size_t(n));
    gemm_now<float>(ta, tb, m, n, k, float(alpha), a.data(), ar ? ar : 1, b.data(), br ? br : 1, 0.f, c.data(),
                    m ? m : 1);
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            const size_t at_c = size_t(j) * size_t(ldc) + size_t(i);
            const float old = beta != 0 ? float(beta) * load(C, ct, at_c) : 0.f;
            store(C, ct, at_c, c[size_t(j) * size_t(m) + size_t(i)] + old);
        }
}
bool good(int type) { return type == R32F || type == R64F || type == R16F || type == R16BF; }
double scalar(const void* p, bool wide) {
    return wide ? *static_cast<const double*>(p) : double(*static_cast<const float*>(p));
}

template <class T>
int gemv(Handle* h, int t, int m, int n, const T* alpha, const T* A, int lda, const T* x, int dx, const T* beta, T* y,
         int dy) {
    called("gemv");
    if (!reachable(A, x, y)) return EXECUTION_FAILED;
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] {
        const T av = a.get(), bv = b.get();
        Lapack<T>::gemv(op(t), &m, &n, &av, A, &lda, x, &dx, &bv, y, &dy);
    });
    return OK;
}
// Results that go to the host make the host wait.
template <class T, class F>
int reduction(const char* name, Handle* h, T* result, F compute) {
    called(name);
    enqueue(h->stream, [=] { *result = compute(); });
    if (!h->pointers) {
        count("sync by a cublas result on the host");
        standin::finish_stream(h->stream);
    }
    return OK;
}
template <class T>
int dot(Handle* h, int n, const T* x, int dx, const T* y, int dy, T* r) {
    return reduction("dot", h, r, [=] {
        double s = 0;
        for (int i = 0; i < n; ++i) s += double(x[long(i) * dx]) * double(y[long(i) * dy]);
        return T(s);
    });
}
template <class T>
int nrm2(Handle* h, int n, const T* x, int dx, T* r) {
    return reduction("nrm2", h, r, [=] {
        double s = 0;
        for (int i = 0; i < n; ++i) s += double(x[long(i) * dx]) * double(x[long(i) * dx]);
        return T(std::sqrt(s));
    });
}
template <class T>
int asum(Handle* h, int n, const T* x, int dx, T* r) {
    return reduction("asum", h, r, [=] {
        double s = 0;
        for (int i = 0; i < n; ++i) s += std::fabs(double(x[long(i) * dx]));
        return T(s);
    });
}
template <class T>
int axpy(Handle* h, int n, const T* alpha, const T* x, int dx, T* y, int dy) {
    called("axpy");
    const Scalar<T> a(h, alpha);
    enqueue(h->stream, [=] {
        const T v = a.get();
        Lapack<T>::axpy(&n, &v, x, &dx, y, &dy);
    });
    return OK;
}
template <class T>
int scal(Handle* h, int n, const T* alpha, T* x, int dx) {
    called("scal");
    const Scalar<T> a(h, alpha);
    enqueue(h->stream, [=] {
        const T v = a.get();
        Lapack<T>::scal(&n, &v, x, &dx);
    });
    return OK;
}
template <class T>
int ger(Handle* h, int m, int n, const T* alpha, const T* x, int dx, const T* y, int dy, T* A, int lda) {
    called("ger");
    const Scalar<T> a(h, alpha);
    enqueue(h->stream, [=] {
        const T v = a.get();
        Lapack<T>::ger(&m, &n, &v, x, &dx, y, &dy, A, &lda);
    });
    return OK;
}
template <class T>
int syrk(Handle* h, int uplo, int t, int n, int k, const T* alpha, const T* A, int lda, const T* beta, T* C, int ldc) {
    called("syrk");
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] {
        const T av = a.get(), bv = b.get();
        Lapack<T>::syrk(uplo ? "U" : "L", op(t), &n, &k, &av, A, &lda, &bv, C, &ldc);
    });
    return OK;
}
template <class T>
void trsm_now(int side, int uplo, int t, int diag, int m, int n, T alpha, const T* A, int lda, T* X, int ldx) {
    Lapack<T>::trsm(side ? "R" : "L", uplo ? "U" : "L", op(t), diag ? "U" : "N", &m, &n, &alpha, A, &lda, X, &ldx);
}
template <class T>
int trsm(Handle* h, int side, int uplo, int t, int diag, int m, int n, const T* alpha, const T* A, int lda, T* X,
         int ldx) {
    called("trsm");
    const Scalar<T> a(h, alpha);
    enqueue(h->stream, [=] { trsm_now(side, uplo, t, diag, m, n, a.get(), A, lda, X, ldx); });
    return OK;
}
template <class T>
int geam(Handle* h, int ta, int tb, int m, int n, const T* alpha, const T* A, int lda, const T* beta, const T* Bm,
         int ldb, T* C, int ldc) {
    called("geam");
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] {
        const T av = a.get(), bv = b.get();
        std::vector<T> out(size_t(m) * size_t(n));
        for (int j = 0; j < n; ++j)
            for (int i = 0; i < m; ++i) {
                const T x = av != 0 ? av * (ta ? A[size_t(i) * size_t(lda) + size_t(j)]
                                               : A[size_t(j) * size_t(lda) + size_t(i)])
                                    : T(0);
                const T y = bv != 0 ? bv * (tb ? Bm[size_t(i) * size_t(ldb) + size_t(j)]
                                               : Bm[size_t(j) * size_t(ldb) + size_t(i)])
                                    : T(0);
                out[size_t(j) * size_t(m) + size_t(i)] = x + y;
            }
        for (int j = 0; j < n; ++j)
            memcpy(C + size_t(j) * size_t(ldc), out.data() + size_t(j) * size_t(m), size_t(m) * sizeof(T));
    });
    return OK;
}
template <class T>
int dgmm(Handle* h, int side, int m, int n, const T* A, int lda, const T* x, int dx, T* C, int ldc) {
    called("dgmm");
    enqueue(h->stream, [=] {
        for (int j = 0; j < n; ++j)
            for (int i = 0; i < m; ++i)
                C[size_t(j) * size_t(ldc) + size_t(i)] =
                    A[size_t(j) * size_t(lda) + size_t(i)] * x[long(side ? j : i) * dx];
    });
    return OK;
}
template <class T>
int gemm_batched(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* const* A, int lda,
                 const T* const* Bm, int ldb, const T* beta, T* const* C, int ldc, int batch) {
    called("gemmBatched");
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] {
        for (int i = 0; i < batch; ++i) gemm_now(ta, tb, m, n, k, a.get(), A[i], lda, Bm[i], ldb, b.get(), C[i], ldc);
    });
    return OK;
}
template <class T>
int gemm_strided(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* A, int lda, long long sa,
                 const T* Bm, int ldb, long long sb, const T* beta, T* C, int ldc, long long sc, int batch) {
    called("gemmStridedBatched");
    if (!reachable(A, Bm, C)) return EXECUTION_FAILED;
    const Scalar<T> a(h, alpha), b(h, beta);
    enqueue(h->stream, [=] {
        for (int i = 0; i < batch; ++i)
            gemm_now(ta, tb, m, n, k, a.get(), A + i * sa, lda, Bm + i * sb, ldb, b.get(), C + i * sc, ldc);
    });
    return OK;
}
template <class T>
int getrf_batched(Handle* h, int n, T* const* A, int lda, int* pivots, int* info, int batch) {
    called("getrfBatched");
    enqueue(h->stream, [=] {
        for (int i = 0; i < batch; ++i) {
            std::vector<int> own(size_t(n) + 1);
            Lapack<T>::getrf(&n, &n, A[i], &lda, pivots ? pivots + long(i) * n : own.data(), info + i);
        }
    });
    return OK;
}
template <class T>
int getri_batched(Handle* h, int n, const T* const* A, int lda, const int* pivots, T* const* C, int ldc, int* info,
                  int batch) {
    called("getriBatched");
    enqueue(h->stream, [=] {
        for (int i = 0; i < batch; ++i) {
            for (int j = 0; j < n; ++j)
                memcpy(C[i] + size_t(j) * size_t(ldc), A[i] + size_t(j) * size_t(lda), size_t(n) * sizeof(T));
            const int size = 64 * (n + 1);
            std::vector<T> work(static_cast<size_t>(size));
            Lapack<T>::getri(&n, C[i], &ldc, pivots + long(i) * n, work.data(), &size, info + i);
        }
    });
    return OK;
}
template <class T>
int getrs_batched(Handle* h, int t, int n, int nrhs, const T* const* A, int lda, const int* pivots, T* const* X,
                  int ldx, int* info, int batch) {
    called("getrsBatched");
    enqueue(h->stream, [=] {
        for (int i = 0, e; i < batch; ++i)
            Lapack<T>::getrs(op(t), &n, &nrhs, A[i], &lda, pivots + long(i) * n, X[i], &ldx, &e, 1);
    });
    *info = 0;
    return OK;
}
template <class T>
int trsm_batched(Handle* h, int side, int uplo, int t, int diag, int m, int n, const T* alpha, const T* const* A,
                 int lda, T* const* X, int ldx, int batch) {
    called("trsmBatched");
    const Scalar<T> a(h, alpha);
    enqueue(h->stream, [=] {
        for (int i = 0; i < batch; ++i) trsm_now(side, uplo, t, diag, m, n, a.get(), A[i], lda, X[i], ldx);
    });
    return OK;
}
template <class T>
int extreme(const char* name, Handle* h, int n, const T* x, int dx, int* r, bool largest) {
    return reduction(name, h, r, [=] {
        int best = 0;
        for (int i = 1; i < n; ++i) {
            const T a = std::fabs(x[long(i) * dx]), b = std::fabs(x[long(best) * dx]);
            if (largest ? a > b : a < b) best = i;
        }
        return best + 1;
    });
}
}  // namespace

extern "C" {
int cublasCreate_v2(Handle** h) {
    *h = new Handle;
    return OK;
}
int cublasDestroy_v2(Handle* h) {
    delete h;
    return OK;
}
int cublasGetVersion_v2(Handle*, int* v) {
    *v = 130000;
    return OK;
}
int cublasSetStream_v2(Handle* h, void* s) {
    h->stream = s;
    return OK;
}
int cublasGetStream_v2(Handle* h, void** s) {
    *s = h->stream;
    return OK;
}
int cublasSetPointerMode_v2(Handle* h, int m) {
    h->pointers = m;
    return OK;
}
int cublasGetPointerMode_v2(Handle* h, int* m) {
    *m = h->pointers;
    return OK;
}
int cublasSetMathMode(Handle* h, int m) {
    h->math = m;
    return OK;
}
int cublasGetMathMode(Handle* h, int* m) {
    *m = h->math;
    return OK;
}

#define TYPED(T, S)                                                                                                    \
    int cublas##S##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const T* a, const T* A, int lda,            \
                           const T* X, int ldx, const T* b, T* C, int ldc) {                                           \
        return gemm<T>(#S "gemm", h, ta, tb, m, n, k, a, A, lda, X, ldx, b, C, ldc);                                   \
    }                                                                                                                  \
    int cublas##S##gemv_v2(Handle* h, int t, int m, int n, const T* a, const T* A, int lda, const T* x, int dx,        \
                           const T* b, T* y, int dy) {                                                                 \
        return gemv<T>(h, t, m, n, a, A, lda, x, dx, b, y, dy);                                                        \
    }                                                                                                                  \
    int cublas##S##dot_v2(Handle* h, int n, const T* x, int dx, const T* y, int dy, T* r) {                            \
        return dot<T>(h, n, x, dx, y, dy, r);                                                                          \
    }                                                                                                                  \
    int cublas##S##nrm2_v2(Handle* h, int n, const T* x, int dx, T* r) { return nrm2<T>(h, n, x, dx, r); }             \
    int cublas##S##asum_v2(Handle* h, int n, const T* x, int dx, T* r) { return asum<T>(h, n, x, dx, r); }             \
    int cublas##S##axpy_v2(Handle* h, int n, const T* a, const T* x, int dx, T* y, int dy) {                           \
        return axpy<T>(h, n, a, x, dx, y, dy);                                                                         \
    }                                                                                                                  \
    int cublas##S##scal_v2(Handle* h, int n, const T* a, T* x, int dx) { return scal<T>(h, n, a, x, dx); }             \
    int cublas##S##ger_v2(Handle* h, int m, int n, const T* a, const T* x, int dx, const T* y, int dy, T* A,           \
                          int lda) {                                                                                   \
        return ger<T>(h, m, n, a, x, dx, y, dy, A, lda);                                                               \
    }                                                                                                                  \
    int cublas##S##syrk_v2(Handle* h, int u, int t, int n, int k, const T* a, const T* A, int lda, const T* b, T* C,   \
                           int ldc) {                                                                                  \
        return syrk<T>(h, u, t, n, k, a, A, lda, b, C, ldc);                                                           \
    }                                                                                                                  \
    int cublas##S##trsm_v2(Handle* h, int s, int u, int t, int d, int m, int n, const T* a, const T* A, int lda, T* X, \
                           int ldx) {                                                                                  \
        return trsm<T>(h, s, u, t, d, m, n, a, A, lda, X, ldx);                                                        \
    }                                                                                                                  \
    int cublas##S##geam(Handle* h, int ta, int tb, int m, int n, const T* a, const T* A, int lda, const T* b,          \
                        const T* X, int ldx, T* C, int ldc) {                                                          \
        return geam<T>(h, ta, tb, m, n, a, A, lda, b, X, ldx, C, ldc);                                                 \
    }                                                                                                                  \
    int cublas##S##dgmm(Handle* h, int s, int m, int n, const T* A, int lda, const T* x, int dx, T* C, int ldc) {      \
        return dgmm<T>(h, s, m, n, A, lda, x, dx, C, ldc);                                                             \
    }                                                                                                                  \
    int cublas##S##gemmBatched(Handle* h, int ta, int tb, int m, int n, int k, const T* a, const T* const* A, int lda, \
                               const T* const* X, int ldx, const T* b, T* const* C, int ldc, int batch) {              \
        return gemm_batched<T>(h, ta, tb, m, n, k, a, A, lda, X, ldx, b, C, ldc, batch);                               \
    }                                                                                                                  \
    int cublas##S##gemmStridedBatched(Handle* h, int ta, int tb, int m, int n, int k, const T* a, const T* A, int lda, \
                                      long long sa, const T* X, int ldx, long long sx, const T* b, T* C, int ldc,      \
                                      long long sc, int batch) {                                                       \
        return gemm_strided<T>(h, ta, tb, m, n, k, a, A, lda, sa, X, ldx, sx, b, C, ldc, sc, batch);                   \
    }                                                                                                                  \
    int cublas##S##getrfBatched(Handle* h, int n, T* const* A, int lda, int* p, int* info, int batch) {                \
        return getrf_batched<T>(h, n, A, lda, p, info, batch);                                                         \
    }                                                                                                                  \
    int cublas##S##getriBatched(Handle* h, int n, const T* const* A, int lda, const int* p, T* const* C, int ldc,      \
                                int* info, int batch) {                                                                \
        return getri_batched<T>(h, n, A, lda, p, C, ldc, info, batch);                                                 \
    }                                                                                                                  \
    int cublas##S##getrsBatched(Handle* h, int t, int n, int r, const T* const* A, int lda, const int* p, T* const* X, \
                                int ldx, int* info, int batch) {                                                       \
        return getrs_batched<T>(h, t, n, r, A, lda, p, X, ldx, info, batch);                                           \
    }                                                                                                                  \
    int cublas##S##trsmBatched(Handle* h, int s, int u, int t, int d, int m, int n, const T* a, const T* const* A,     \
                               int lda, T* const* X, int ldx, int batch) {                                             \
        return trsm_batched<T>(h, s, u, t, d, m, n, a, A, lda, X, ldx, batch);                                         \
    }
TYPED(float, S)
TYPED(double, D)
int cublasIsamax_v2(Handle* h, int n, const float* x, int dx, int* r) { return extreme("amax", h, n, x, dx, r, true); }
int cublasIdamax_v2(Handle* h, int n, const double* x, int dx, int* r) { return extreme("amax", h, n, x, dx, r, true); }
int cublasIsamin_v2(Handle* h, int n, const float* x, int dx, int* r) { return extreme("amin", h, n, x, dx, r, false); }
int cublasIdamin_v2(Handle* h, int n, const double* x, int dx, int* r) {
    return extreme("amin", h, n, x, dx, r, false);
}

int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* A, int at,
                               int lda, long long sa, const void* X, int bt, int ldx, long long sx, const void* beta,
                               void* C, int ct, int ldc, long long sc, int batch, int compute, int) {
    called("GemmStridedBatchedEx");
    if (!good(at) || !good(bt) || !good(ct) || h->pointers) return UNSUPPORTED;
    if (!reachable(A, X, C)) return EXECUTION_FAILED;
    const bool wide = compute == 70 || compute == 71;  // CUBLAS_COMPUTE_64F, _PEDANTIC
    const double a = scalar(alpha, wide), b = scalar(beta, wide);
    enqueue(h->stream, [=] {
        for (long long i = 0; i < batch; ++i)
            gemm_ex_now(ta, tb, m, n, k, a, static_cast<const char*>(A) + i * sa * (long long)item(at), at, lda,
                        static_cast<const char*>(X) + i * sx * (long long)item(bt), bt, ldx, b,
                        static_cast<char*>(C) + i * sc * (long long)item(ct), ct, ldc);
    });
    return OK;
}
int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* A, int at, int lda,
                 const void* X, int bt, int ldx, const void* beta, void* C, int ct, int ldc, int compute, int) {
    called("GemmEx");
    if (!good(at) || !good(bt) || !good(ct) || h->pointers) return UNSUPPORTED;
    if (!reachable(A, X, C)) return EXECUTION_FAILED;
    const bool wide = compute == 70 || compute == 71;  // CUBLAS_COMPUTE_64F, _PEDANTIC
    const double a = scalar(alpha, wide), b = scalar(beta, wide);
    enqueue(h->stream, [=] { gemm_ex_now(ta, tb, m, n, k, a, A, at, lda, X, bt, ldx, b, C, ct, ldc); });
    return OK;
}
int cublasSgemmEx(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const void* A, int at, int lda,
                  const void* X, int bt, int ldx, const float* beta, void* C, int ct, int ldc) {
    called("SgemmEx");
    if (!good(at) || !good(bt) || !good(ct) || h->pointers) return UNSUPPORTED;
    if (!reachable(A, X, C)) return EXECUTION_FAILED;
    const double a = *alpha, b = *beta;
    enqueue(h->stream, [=] { gemm_ex_now(ta, tb, m, n, k, a, A, at, lda, X, bt, ldx, b, C, ct, ldc); });
    return OK;
}
}

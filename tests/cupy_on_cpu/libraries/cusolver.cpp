// Stands in for libcusolver.so.12, by LAPACK: real types, dense.
//
// Not there: complex and sparse functions; Jacobi methods (syevj is LAPACK's syevd, gesvdj its gesvd, so tolerance and
// sweeps are ignored). Workspaces are LAPACK's own: the sizes told to CuPy are token ones, and cuSOLVER's real need of
// device memory is not counted. Nor is it checked that matrices are on the current device, as cublas.cpp does.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "device.h"
#include "lapack.h"

using standin::count;
using standin::enqueue;

namespace {
struct Handle {
    void* stream = nullptr;
};
enum { OK = 0, INVALID = 3, UNSUPPORTED = 9 };
constexpr int TOKEN = 16;  // elements of workspace, which is not used
void called(const char* name) {
    count("cusolver calls");
    count((std::string("cusolver ") + name).c_str());
}
const char* triangle(int uplo) { return uplo ? "U" : "L"; }
const char* op(int t) { return t == 0 ? "N" : "T"; }

template <class T>
void syevd_now(int jobz, int uplo, int n, T* A, int lda, T* W, int* info) {
    T size;
    int isize, minus = -1;
    const char* job = jobz ? "V" : "N";
    Lapack<T>::syevd(job, triangle(uplo), &n, A, &lda, W, &size, &minus, &isize, &minus, info, 1, 1);
    int lwork = std::max(int(size) + 64, 1), liwork = std::max(isize, 1);
    std::vector<T> work(static_cast<size_t>(lwork));
    std::vector<int> iwork(static_cast<size_t>(liwork));
    Lapack<T>::syevd(job, triangle(uplo), &n, A, &lda, W, work.data(), &lwork, iwork.data(), &liwork, info, 1, 1);
}
template <class T>
void gesvd_now(char ju, char jv, int m, int n, T* A, int lda, T* S, T* U, int ldu, T* VT, int ldv, int* info) {
    T size;
    int minus = -1;
    ldu = std::max(ldu, 1);
    ldv = std::max(ldv, 1);
    Lapack<T>::gesvd(&ju, &jv, &m, &n, A, &lda, S, U, &ldu, VT, &ldv, &size, &minus, info, 1, 1);
    int lwork = std::max(int(size) + 64, 1);
    std::vector<T> work(static_cast<size_t>(lwork));
    Lapack<T>::gesvd(&ju, &jv, &m, &n, A, &lda, S, U, &ldu, VT, &ldv, work.data(), &lwork, info, 1, 1);
}
// U S V', V and not its transpose; econ: min(m, n) columns
template <class T>
void gesvdj_now(int jobz, int econ, int m, int n, T* A, int lda, T* S, T* U, int ldu, T* V, int ldv, int* info) {
    const int k = std::min(m, n), vr = econ ? k : n;
    std::vector<T> vt(size_t(vr) * size_t(n) + 1);
    const char job = !jobz ? 'N' : econ ? 'S' : 'A';
    gesvd_now<T>(job, job, m, n, A, lda, S, U, ldu, vt.data(), vr, info);
    if (jobz)
        for (int j = 0; j < vr; ++j)
            for (int i = 0; i < n; ++i) V[size_t(j) * size_t(ldv) + size_t(i)] = vt[size_t(i) * size_t(vr) + size_t(j)];
}
}  // namespace

extern "C" {
int cusolverDnCreate(Handle** h) {
    *h = new Handle;
    return OK;
}
int cusolverDnDestroy(Handle* h) {
    delete h;
    return OK;
}
int cusolverDnSetStream(Handle* h, void* s) {
    h->stream = s;
    return OK;
}
int cusolverDnGetStream(Handle* h, void** s) {
    *s = h->stream;
    return OK;
}
int cusolverSpCreate(Handle** h) {
    *h = new Handle;
    return OK;
}
int cusolverSpDestroy(Handle* h) {
    delete h;
    return OK;
}
int cusolverSpSetStream(Handle* h, void* s) {
    h->stream = s;
    return OK;
}
int cusolverSpGetStream(Handle* h, void** s) {
    *s = h->stream;
    return OK;
}
int cusolverDnCreateParams(void** p) {
    *p = new char;
    return OK;
}
int cusolverDnDestroyParams(void* p) {
    delete static_cast<char*>(p);
    return OK;
}
int cusolverDnCreateSyevjInfo(void** p) {
    *p = new char;
    return OK;
}
int cusolverDnDestroySyevjInfo(void* p) {
    delete static_cast<char*>(p);
    return OK;
}
int cusolverDnCreateGesvdjInfo(void** p) {
    *p = new char;
    return OK;
}
int cusolverDnDestroyGesvdjInfo(void* p) {
    delete static_cast<char*>(p);
    return OK;
}
int cusolverDnXsyevjSetTolerance(void*, double) { return OK; }
int cusolverDnXsyevjSetMaxSweeps(void*, int) { return OK; }
int cusolverDnXsyevjSetSortEig(void*, int) { return OK; }
int cusolverDnXgesvdjSetTolerance(void*, double) { return OK; }
int cusolverDnXgesvdjSetMaxSweeps(void*, int) { return OK; }
int cusolverDnXgesvdjSetSortEig(void*, int) { return OK; }
int cusolverGetProperty(int type, int* value) {
    *value = type == 0 ? 12 : 0;
    return OK;
}

int cusolverDnXsyevd_bufferSize(Handle*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int,
                                size_t* device, size_t* host) {
    *device = *host = TOKEN;
    return OK;
}
int cusolverDnXsyevd(Handle* h, void*, int jobz, int uplo, int64_t n, int at, void* A, int64_t lda, int, void* W, int,
                     void*, size_t, void*, size_t, int* info) {
    called("Xsyevd");
    if (at > 1) return UNSUPPORTED;
    enqueue(h->stream, [=] {
        if (at)
            syevd_now(jobz, uplo, int(n), static_cast<double*>(A), int(lda), static_cast<double*>(W), info);
        else
            syevd_now(jobz, uplo, int(n), static_cast<float*>(A), int(lda), static_cast<float*>(W), info);
    });
    return OK;
}
#define TYPED(T, S)                                                                                                    \
    int cusolverDn##S##potrf_bufferSize(Handle*, int, int, T*, int, int* n) {                                          \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##potrf(Handle* h, int uplo, int n, T* A, int lda, T*, int, int* info) {                          \
        called("potrf");                                                                                               \
        enqueue(h->stream, [=] { Lapack<T>::potrf(triangle(uplo), &n, A, &lda, info, 1); });                           \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##potrs(Handle* h, int uplo, int n, int r, const T* A, int lda, T* X, int ldx, int* info) {       \
        called("potrs");                                                                                               \
        enqueue(h->stream, [=] { Lapack<T>::potrs(triangle(uplo), &n, &r, A, &lda, X, &ldx, info, 1); });              \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##potrfBatched(Handle* h, int uplo, int n, T** A, int lda, int* info, int batch) {                \
        called("potrfBatched");                                                                                        \
        enqueue(h->stream, [=] {                                                                                       \
            for (int i = 0; i < batch; ++i) Lapack<T>::potrf(triangle(uplo), &n, A[i], &lda, info + i, 1);             \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##potrsBatched(Handle* h, int uplo, int n, int r, T** A, int lda, T** X, int ldx, int* info,      \
                                    int batch) {                                                                       \
        called("potrsBatched");                                                                                        \
        enqueue(h->stream, [=] {                                                                                       \
            for (int i = 0; i < batch; ++i) Lapack<T>::potrs(triangle(uplo), &n, &r, A[i], &lda, X[i], &ldx, info, 1); \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##getrf_bufferSize(Handle*, int, int, T*, int, int* n) {                                          \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##getrf(Handle* h, int m, int n, T* A, int lda, T*, int* pivots, int* info) {                     \
        called("getrf");                                                                                               \
        enqueue(h->stream, [=] {                                                                                       \
            std::vector<int> own(size_t(std::min(m, n)) + 1);                                                          \
            Lapack<T>::getrf(&m, &n, A, &lda, pivots ? pivots : own.data(), info);                                     \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##getrs(Handle* h, int t, int n, int r, const T* A, int lda, const int* pivots, T* X, int ldx,    \
                             int* info) {                                                                              \
        called("getrs");                                                                                               \
        enqueue(h->stream, [=] { Lapack<T>::getrs(op(t), &n, &r, A, &lda, pivots, X, &ldx, info, 1); });               \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##geqrf_bufferSize(Handle*, int, int, T*, int, int* n) {                                          \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##geqrf(Handle* h, int m, int n, T* A, int lda, T* tau, T*, int, int* info) {                     \
        called("geqrf");                                                                                               \
        enqueue(h->stream, [=] {                                                                                       \
            int size = 64 * (n + 1);                                                                                   \
            std::vector<T> work(static_cast<size_t>(size));                                                            \
            Lapack<T>::geqrf(&m, &n, A, &lda, tau, work.data(), &size, info);                                          \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##orgqr_bufferSize(Handle*, int, int, int, const T*, int, const T*, int* n) {                     \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##orgqr(Handle* h, int m, int n, int k, T* A, int lda, const T* tau, T*, int, int* info) {        \
        called("orgqr");                                                                                               \
        enqueue(h->stream, [=] {                                                                                       \
            int size = 64 * (n + 1);                                                                                   \
            std::vector<T> work(static_cast<size_t>(size));                                                            \
            Lapack<T>::orgqr(&m, &n, &k, A, &lda, tau, work.data(), &size, info);                                      \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##ormqr_bufferSize(Handle*, int, int, int, int, int, const T*, int, const T*, const T*, int,      \
                                        int* n) {                                                                      \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##ormqr(Handle* h, int side, int t, int m, int n, int k, const T* A, int lda, const T* tau, T* C, \
                             int ldc, T*, int, int* info) {                                                            \
        called("ormqr");                                                                                               \
        enqueue(h->stream, [=] {                                                                                       \
            int size = 64 * (std::max(m, n) + 1);                                                                      \
            std::vector<T> work(static_cast<size_t>(size));                                                            \
            Lapack<T>::ormqr(side ? "R" : "L", op(t), &m, &n, &k, A, &lda, tau, C, &ldc, work.data(), &size, info, 1,  \
                             1);                                                                                       \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevd_bufferSize(Handle*, int, int, int, const T*, int, const T*, int* n) {                     \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevd(Handle* h, int jobz, int uplo, int n, T* A, int lda, T* W, T*, int, int* info) {          \
        called("syevd");                                                                                               \
        enqueue(h->stream, [=] { syevd_now(jobz, uplo, n, A, lda, W, info); });                                        \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevj_bufferSize(Handle*, int, int, int, const T*, int, const T*, int* n, void*) {              \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevj(Handle* h, int jobz, int uplo, int n, T* A, int lda, T* W, T*, int, int* info, void*) {   \
        called("syevj");                                                                                               \
        enqueue(h->stream, [=] { syevd_now(jobz, uplo, n, A, lda, W, info); });                                        \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevjBatched_bufferSize(Handle*, int, int, int, const T*, int, const T*, int* n, void*, int) {  \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##syevjBatched(Handle* h, int jobz, int uplo, int n, T* A, int lda, T* W, T*, int, int* info,     \
                                    void*, int batch) {                                                                \
        called("syevjBatched");                                                                                        \
        enqueue(h->stream, [=] {                                                                                       \
            for (long i = 0; i < batch; ++i) syevd_now(jobz, uplo, n, A + i * lda * n, lda, W + i * n, info + i);      \
        });                                                                                                            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##gesvd_bufferSize(Handle*, int m, int n, int* size) {                                            \
        *size = TOKEN;                                                                                                 \
        return m < n ? INVALID : OK;                                                                                   \
    }                                                                                                                  \
    int cusolverDn##S##gesvd(Handle* h, signed char ju, signed char jv, int m, int n, T* A, int lda, T* W, T* U,       \
                             int ldu, T* VT, int ldv, T*, int, T*, int* info) {                                        \
        called("gesvd");                                                                                               \
        if (m < n) return INVALID;                                                                                     \
        enqueue(h->stream, [=] { gesvd_now(char(ju), char(jv), m, n, A, lda, W, U, ldu, VT, ldv, info); });            \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##gesvdj_bufferSize(Handle*, int, int, int, int, const T*, int, const T*, const T*, int,          \
                                         const T*, int, int* n, void*) {                                               \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##gesvdj(Handle* h, int jobz, int econ, int m, int n, T* A, int lda, T* W, T* U, int ldu, T* V,   \
                              int ldv, T*, int, int* info, void*) {                                                    \
        called("gesvdj");                                                                                              \
        enqueue(h->stream, [=] { gesvdj_now(jobz, econ, m, n, A, lda, W, U, ldu, V, ldv, info); });                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##gesvdjBatched_bufferSize(Handle*, int, int, int, const T*, int, const T*, const T*, int,        \
                                                const T*, int, int* n, void*, int) {                                   \
        *n = TOKEN;                                                                                                    \
        return OK;                                                                                                     \
    }                                                                                                                  \
    int cusolverDn##S##gesvdjBatched(Handle* h, int jobz, int m, int n, T* A, int lda, T* W, T* U, int ldu, T* V,      \
                                     int ldv, T*, int, int* info, void*, int batch) {                                  \
        called("gesvdjBatched");                                                                                       \
        enqueue(h->stream, [=] {                                                                                       \
            const long k = std::min(m, n);                                                                             \
            for (long i = 0; i < batch; ++i)                                                                           \
                gesvdj_now(jobz, 0, m, n, A + i * lda * n, lda, W + i * k, U + i * ldu * m, ldu, V + i * ldv * n, ldv, \
                           info + i);                                                                                  \
        });                                                                                                            \
        return OK;                                                                                                     \
    }
TYPED(float, S)
TYPED(double, D)
}

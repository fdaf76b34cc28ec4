// BLAS and LAPACK as PyPI's scipy-openblas32 names them: Fortran interface, float and double, no complex types.
#pragma once
#include <cstddef>
#define FORTRAN(name) scipy_##name##_
extern "C" {
#define REAL(T, s)                                                                                                     \
    void FORTRAN(s##gemm)(const char*, const char*, const int*, const int*, const int*, const T*, const T*,            \
                          const int*, const T*, const int*, const T*, T*, const int*);                                 \
    void FORTRAN(s##gemv)(const char*, const int*, const int*, const T*, const T*, const int*, const T*, const int*,   \
                          const T*, T*, const int*);                                                                   \
    void FORTRAN(s##ger)(const int*, const int*, const T*, const T*, const int*, const T*, const int*, T*,             \
                         const int*);                                                                                  \
    void FORTRAN(s##syrk)(const char*, const char*, const int*, const int*, const T*, const T*, const int*, const T*,  \
                          T*, const int*);                                                                             \
    void FORTRAN(s##trsm)(const char*, const char*, const char*, const char*, const int*, const int*, const T*,        \
                          const T*, const int*, T*, const int*);                                                       \
    void FORTRAN(s##axpy)(const int*, const T*, const T*, const int*, T*, const int*);                                 \
    void FORTRAN(s##scal)(const int*, const T*, T*, const int*);                                                       \
    void FORTRAN(s##potrf)(const char*, const int*, T*, const int*, int*, size_t);                                     \
    void FORTRAN(s##potrs)(const char*, const int*, const int*, const T*, const int*, T*, const int*, int*, size_t);   \
    void FORTRAN(s##getrf)(const int*, const int*, T*, const int*, int*, int*);                                        \
    void FORTRAN(s##getrs)(const char*, const int*, const int*, const T*, const int*, const int*, T*, const int*,      \
                           int*, size_t);                                                                              \
    void FORTRAN(s##getri)(const int*, T*, const int*, const int*, T*, const int*, int*);                              \
    void FORTRAN(s##geqrf)(const int*, const int*, T*, const int*, T*, T*, const int*, int*);                          \
    void FORTRAN(s##orgqr)(const int*, const int*, const int*, T*, const int*, const T*, T*, const int*, int*);        \
    void FORTRAN(s##ormqr)(const char*, const char*, const int*, const int*, const int*, const T*, const int*,         \
                           const T*, T*, const int*, T*, const int*, int*, size_t, size_t);                            \
    void FORTRAN(s##syevd)(const char*, const char*, const int*, T*, const int*, T*, T*, const int*, int*, const int*, \
                           int*, size_t, size_t);                                                                      \
    void FORTRAN(s##gesvd)(const char*, const char*, const int*, const int*, T*, const int*, T*, T*, const int*, T*,   \
                           const int*, T*, const int*, int*, size_t, size_t);
REAL(float, s)
REAL(double, d)
#undef REAL
}
// by type: Lapack<float>::gemm is sgemm
template <class T>
struct Lapack;
#define NAMES(T, s)                                      \
    template <>                                          \
    struct Lapack<T> {                                   \
        static constexpr auto gemm = FORTRAN(s##gemm);   \
        static constexpr auto gemv = FORTRAN(s##gemv);   \
        static constexpr auto ger = FORTRAN(s##ger);     \
        static constexpr auto syrk = FORTRAN(s##syrk);   \
        static constexpr auto trsm = FORTRAN(s##trsm);   \
        static constexpr auto axpy = FORTRAN(s##axpy);   \
        static constexpr auto scal = FORTRAN(s##scal);   \
        static constexpr auto potrf = FORTRAN(s##potrf); \
        static constexpr auto potrs = FORTRAN(s##potrs); \
        static constexpr auto getrf = FORTRAN(s##getrf); \
        static constexpr auto getrs = FORTRAN(s##getrs); \
        static constexpr auto getri = FORTRAN(s##getri); \
        static constexpr auto geqrf = FORTRAN(s##geqrf); \
        static constexpr auto orgqr = FORTRAN(s##orgqr); \
        static constexpr auto ormqr = FORTRAN(s##ormqr); \
        static constexpr auto syevd = FORTRAN(s##syevd); \
        static constexpr auto gesvd = FORTRAN(s##gesvd); \
    };
NAMES(float, s)
NAMES(double, d)
#undef NAMES

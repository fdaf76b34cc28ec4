// How tensor cores multiply: where the words of an mma lie in a warp, and how its sums are rounded. Both simulators use it
// (tests/cuda_on_cpu, tests/cupy_on_cpu). tests/kernels/test_cuda_fragments.py compares the places with NVIDIA's.
//
// A word holds one tf32 or two 16-bit numbers. A has 16 rows of words, B 8 columns of them, C is 16 x 8.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tensor_core {

struct Place { unsigned lane; int number; };  // number: of the register
inline Place a_place(unsigned row, unsigned k) { return {row % 8 * 4 + k % 4, int(row / 8 + k / 4 * 2)}; }
inline Place b_place(unsigned k, unsigned column) { return {column * 4 + k % 4, int(k / 4)}; }
inline unsigned c_row(unsigned lane, int number) { return lane / 4 + 8 * unsigned(number / 2); }
inline unsigned c_column(unsigned lane, int number) { return lane % 4 * 2 + unsigned(number % 2); }

struct Tf32 {  // the hardware ignores the low 13 bits
    static constexpr int per_word = 1;
    static float get(uint32_t w, int) { w &= 0xffffe000u; float f; memcpy(&f, &w, 4); return f; }
};
struct F16 {
    static constexpr int per_word = 2;
    static float get(uint32_t w, int i) { const uint16_t h = uint16_t(w >> 16 * i); _Float16 f; memcpy(&f, &h, 2); return float(f); }
};
struct BF16 {
    static constexpr int per_word = 2;
    static float get(uint32_t w, int i) { w = w >> 16 * i << 16; float f; memcpy(&f, &w, 4); return f; }
};

// c plus four exact products, by the model of Fasi, Higham, Mikaitis and Pranesh (2021): all are aligned to the largest,
// cut off one bit below its 24, added, and the sum is cut to 24 bits. -DSIM_SUMS_IN_DOUBLE rounds each mma only once.
inline float add_four(float c, const double* p) {
    const double plain = c + p[0] + p[1] + p[2] + p[3];
    const double largest = std::max({std::fabs(double(c)), std::fabs(p[0]), std::fabs(p[1]), std::fabs(p[2]), std::fabs(p[3])});
    if (!std::isfinite(plain) || largest == 0) return float(plain);
    uint64_t bits;
    double unit, sum;
    memcpy(&bits, &largest, 8);
    bits = (bits & 0x7ff0000000000000u) - (24ull << 52);
    memcpy(&unit, &bits, 8);
    const double per_unit = 1 / unit;
    int64_t units = int64_t(c * per_unit);
    for (int i = 0; i < 4; ++i) units += int64_t(p[i] * per_unit);
    sum = double(units) * unit;
    memcpy(&bits, &sum, 8);
    bits &= ~((1ull << 29) - 1);
    memcpy(&sum, &bits, 8);
    return float(sum);
}

// The four sums of a lane; word(lane, i) gives word i of a lane: first those of A, then those of B.
template <class Number, int A_WORDS, class Word> inline void mma(float* const (&c)[4], unsigned lane, Word word) {
    constexpr int DEPTH = A_WORDS * 2 * Number::per_word;  // numbers along k
    for (int e = 0; e < 4; ++e) {
        const unsigned row = c_row(lane, e), column = c_column(lane, e);
        double product[DEPTH];
        for (unsigned k = 0; k < DEPTH; ++k) {
            const Place a = a_place(row, k / Number::per_word), b = b_place(k / Number::per_word, column);
            const int i = int(k % Number::per_word);
            product[k] = double(Number::get(word(a.lane, a.number), i)) * double(Number::get(word(b.lane, A_WORDS + b.number), i));
        }
#ifdef SIM_SUMS_IN_DOUBLE
        double sum = *c[e];
        for (double p : product) sum += p;
        *c[e] = float(sum);
#else
        for (int k = 0; k < DEPTH; k += 4) *c[e] = add_four(*c[e], product + k);
#endif
    }
}
}  // namespace tensor_core

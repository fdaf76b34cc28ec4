// Compares, element by element, where NVIDIA's CuTe says that the operands of an mma lie in a warp with where our kernels
// (fragments.cuh) and the simulators (tensor_core.h) look for them. A host program: CuTe's layouts are compile-time
// arithmetic. Prints the elements that differ, and fails if there are any.
#include <cute/atom/mma_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cstdio>

#include KERNEL_HEADER
#include SIMULATOR_HEADER

static int wrong;

static void compare(const char* what, int lane, int value, int theirs, int ours) {
    if (theirs == ours) return;
    std::printf("%s: lane %d, value %d is %d for CuTe and %d here\n", what, lane, value, theirs, ours);
    ++wrong;
}

// FIRST is the first of the 8 words along k that the instruction takes, and FIRST_A, FIRST_B its first registers.
template <class Op, int PER_WORD, int FIRST = 0, int FIRST_A = 0, int FIRST_B = 0> void check() {
    using Traits = cute::MMA_Traits<Op>;
    constexpr int ROWS = 16, COLUMNS = 8;
    typename Traits::ALayout A;
    typename Traits::BLayout B;
    typename Traits::CLayout C;
    for (int lane = 0; lane < 32; ++lane) {
        for (int v = 0; v < int(cute::size<1>(A)); ++v) {
            const int at = A(lane, v), row = at % ROWS, number = at / ROWS + FIRST * PER_WORD, i = FIRST_A + v / PER_WORD;
            compare("kernel, row of A", lane, v, row, a_row(lane, i));
            compare("kernel, number of A", lane, v, number, a_word(lane, i) * PER_WORD + v % PER_WORD);
            const auto place = tensor_core::a_place(row, at / ROWS / PER_WORD);
            compare("simulator, lane of A", lane, v, lane, int(place.lane));
            compare("simulator, register of A", lane, v, v / PER_WORD, place.number);
        }
        for (int v = 0; v < int(cute::size<1>(B)); ++v) {
            const int at = B(lane, v), column = at % COLUMNS, number = at / COLUMNS + FIRST * PER_WORD;
            const int i = FIRST_B + v / PER_WORD;
            compare("kernel, column of B", lane, v, column, b_column(lane));
            compare("kernel, number of B", lane, v, number, b_word(lane, i) * PER_WORD + v % PER_WORD);
            const auto place = tensor_core::b_place(at / COLUMNS / PER_WORD, column);
            compare("simulator, lane of B", lane, v, lane, int(place.lane));
            compare("simulator, register of B", lane, v, v / PER_WORD, place.number);
        }
        for (int v = 0; v < int(cute::size<1>(C)); ++v) {
            const int at = C(lane, v), row = at % ROWS, column = at / ROWS;
            compare("kernel, row of C", lane, v, row, c_row(lane, v));
            compare("kernel, column of C", lane, v, column, c_column(lane, v));
            compare("simulator, row of C", lane, v, row, int(tensor_core::c_row(lane, v)));
            compare("simulator, column of C", lane, v, column, int(tensor_core::c_column(lane, v)));
        }
    }
}

// On sm_75, MMA_F16 of ptx.cuh is two instructions of half the depth: which registers does each get?
struct Half { int a0, a1, b0; } halves[2];
static int n_halves;
#define MMA_HALF(c, first_a, second_a, first_b) halves[n_halves++] = {first_a, second_a, first_b}
#include "mma_f16_of_sm_75.h"

int main() {
    check<cute::SM80_16x8x8_F32TF32TF32F32_TN, 1>();
    check<cute::SM80_16x8x16_F32F16F16F32_TN, 2>();
    check<cute::SM80_16x8x16_F32BF16BF16F32_TN, 2>();
    check<cute::SM75_16x8x8_F32F16F16F32_TN, 2, 0, 0, 0>();
    check<cute::SM75_16x8x8_F32F16F16F32_TN, 2, 4, 2, 1>();
    const int a[4] = {0, 1, 2, 3}, b[2] = {0, 1};
    MMA_F16(nullptr, a, b);
    for (int h = 0; h < 2; ++h) {
        compare("ptx.cuh, first register of A", h, 0, 2 * h, halves[h].a0);
        compare("ptx.cuh, second register of A", h, 1, 2 * h + 1, halves[h].a1);
        compare("ptx.cuh, register of B", h, 0, h, halves[h].b0);
    }
    return wrong != 0;
}

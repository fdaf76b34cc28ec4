// Stands in for barriers and warp collectives: a thread is a fiber, which gives way here (libraries/fibers.cpp).
//
// Not there: __activemask() says that all lanes are active, and lanes run one after the other between collectives, so a
// kernel that counts on a warp in lockstep goes wrong (CuPy's partition does).
#pragma once
#include "fibers.h"

inline void __syncthreads() { sim_block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { sim_warp_barrier(mask); }
inline unsigned __activemask() { return 0xffffffffu; }
template <class T>
inline T sim_shuffle(unsigned mask, T value, unsigned from) {
    static_assert(sizeof(T) <= 16);
    uint32_t words[4] = {};
    memcpy(words, &value, sizeof value);
    constexpr int n = (sizeof(T) + 3) / 4;
    sim_exchange(mask, words, n);
    for (int i = 0; i < n; ++i) words[i] = sim_word(from, i);
    memcpy(&value, words, sizeof value);
    return value;
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const unsigned lane = sim_state.lane, base = lane & ~unsigned(width - 1);
    return sim_shuffle(mask, value, base + (unsigned(from) & unsigned(width - 1)));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const unsigned lane = sim_state.lane, from = lane ^ unsigned(bits);
    return sim_shuffle(mask, value, from / unsigned(width) > lane / unsigned(width) ? lane : from);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = sim_state.lane, place = lane & unsigned(width - 1);
    return sim_shuffle(mask, value, place < by ? lane : lane - by);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = sim_state.lane, place = lane & unsigned(width - 1);
    return sim_shuffle(mask, value, place + by >= unsigned(width) ? lane : lane + by);
}
inline unsigned __ballot_sync(unsigned mask, int bit) {
    const uint32_t word = bit != 0;
    sim_exchange(mask, &word, 1);
    unsigned all = 0;
    for (unsigned lane = 0, there = sim_active(mask); lane < 32; ++lane)
        if (there >> lane & 1) all |= sim_word(lane, 0) << lane;
    return all;
}
inline int __any_sync(unsigned mask, int bit) { return __ballot_sync(mask, bit) != 0; }
inline int __all_sync(unsigned mask, int bit) {
    const uint32_t ones = __ballot_sync(mask, bit);
    return ones == sim_active(mask);
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
    uint32_t words[2] = {};
    memcpy(words, &value, sizeof value);
    sim_exchange(mask, words, 2);
    unsigned peers = 0;
    for (unsigned lane = 0, there = sim_active(mask); lane < 32; ++lane)
        if (there >> lane & 1)
            peers |= unsigned(sim_word(lane, 0) == words[0] && sim_word(lane, 1) == words[1]) << lane;
    return peers;
}

// What a compiled kernel and the scheduler (libraries/fibers.cpp) share.
#pragma once
#include <cstddef>
#include <cstdint>

struct SimIndex {
    unsigned x, y, z;
};
struct SimState {
    SimIndex thread, block, block_size, grid_size;
    void* shared;  // dynamic shared memory of the block
    unsigned lane;
};
enum SimMode {        // Mode of compile_kernel.py
    SIM_THREADS = 0,  // no barriers: thread after thread
    SIM_ONE = 1,      // a grid-stride loop: one thread does it all
    SIM_FIBERS = 2,   // barriers or warp collectives: every thread of a block a fiber
    SIM_BLOCKS = 3,   // one thread does a block
};
extern "C" {
extern SimState sim_state;
void sim_block_barrier();
void sim_warp_barrier(unsigned mask);
void sim_exchange(unsigned mask, const uint32_t* words, int n);  // then sim_word(lane, i)
uint32_t sim_word(unsigned lane, int i);
unsigned sim_active(unsigned mask);               // lanes of the mask that took part in the last exchange
void sim_async_copy(void* to, const void* from);  // cp.async, 16 bytes
void sim_async_commit();
void sim_async_wait(int groups_left);
}

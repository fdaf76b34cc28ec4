// Runs the blocks of a launch, one after the other. A kernel with barriers or warp collectives has a fiber for every
// thread of a block; a warp runs as far as it gets, then the next.
//
// What it finds: divergent barriers, collectives that lanes left early, shared memory written past its end, and, since
// it is filled with 0xFF first, shared memory read before it is written. What it does not: two threads that race
// without a barrier between them (tests/cuda_on_cpu looks for those in our kernels), or a missing __syncwarp where the
// order in which lanes run happens to do.
#include "fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "launch.h"

SimState sim_state;

// The registers that a function call preserves go to the stack, whose pointer is left in *save; those at `load` come
// back.
extern "C" void sim_switch(void** save, void* load);
asm(R"(
.text
.globl sim_switch
.hidden sim_switch
.type sim_switch,@function
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_switch,.-sim_switch
)");

namespace {
constexpr size_t STACK = 64 << 10;
constexpr unsigned MAX_THREADS = 1024, WARP = 32;
constexpr size_t GUARD = 48;  // bytes behind the dynamic shared memory that must stay as they are
constexpr char POISON = char(0xFF);

enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct AsyncCopy {
    void* to;
    const void* from;
    unsigned group;
};
struct Fiber {
    void* sp;
    State state;
    SimIndex index;
    unsigned mask;         // of the collective it waits at
    uint32_t words[2][8];  // what it gave to this collective and the one before
    unsigned active[2];    // who took part in them
    unsigned turn;         // which of the two is this one
    std::vector<AsyncCopy> copies;
    unsigned committed;
};
Fiber* fibers;  // MAX_THREADS, made at the first launch
char* stacks;
Fiber* running;
unsigned running_number, n_fibers;
void* scheduler_sp;
void (*kernel)(void**);
void** kernel_args;
std::string failure;

void leave() { sim_switch(&running->sp, scheduler_sp); }
void fiber_main() {
    kernel(kernel_args);
    if (!running->copies.empty()) failure = "a thread exited with asynchronous copies under way";
    running->state = DONE;
    leave();
    __builtin_unreachable();
}
void prepare(unsigned i) {
    Fiber& f = fibers[i];
    char* top = stacks + (i + 1) * STACK - (i % 61) * 320;  // staggered: not all on the same cache sets
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(fiber_main);
    for (int r = 0; r < 6; ++r) *--sp = nullptr;
    f.sp = sp;
    f.state = READY;
    f.turn = f.committed = 0;
    f.copies.clear();
}
// Lets those lanes go on whose collective all lanes of its mask have come to.
bool release_warp(unsigned first, unsigned last) {
    bool any = false;
    for (unsigned i = first; i < last; ++i) {
        if (fibers[i].state != AT_WARP) continue;
        const unsigned mask = fibers[i].mask;
        unsigned there = 0;
        bool all = true;
        for (unsigned j = first; j < last; ++j) {
            if (!(mask >> (j - first) & 1) || fibers[j].state == DONE) continue;
            if (fibers[j].state == AT_WARP && fibers[j].mask == mask)
                there |= 1u << (j - first);
            else
                all = false;
        }
        if (!all) continue;
        for (unsigned j = first; j < last; ++j)
            if (there >> (j - first) & 1) {
                fibers[j].state = READY;
                fibers[j].active[fibers[j].turn] = there;
            }
        any = true;
    }
    return any;
}
// A warp as far as it gets: its stacks stay in cache. Returns how many threads ran.
unsigned run_warp(unsigned first, unsigned last) {
    unsigned ran = 0;
    for (bool waiting = true; waiting;) {
        waiting = false;
        for (unsigned i = first; i < last; ++i) {
            Fiber& f = fibers[i];
            if (f.state == READY) {
                running = &f;
                running_number = i;
                sim_state.thread = f.index;
                sim_state.lane = i % WARP;
                sim_switch(&scheduler_sp, f.sp);
                ++ran;
            }
            waiting |= f.state == AT_WARP;
        }
        waiting = waiting && release_warp(first, last);
    }
    return ran;
}
void run_fibers() {
    for (unsigned i = 0; i < n_fibers; ++i) prepare(i);
    for (unsigned done = 0; done < n_fibers && failure.empty();) {
        unsigned ran = 0, at_block = 0;
        for (unsigned first = 0; first < n_fibers; first += WARP)
            ran += run_warp(first, std::min(first + WARP, n_fibers));
        done = 0;
        for (unsigned i = 0; i < n_fibers; ++i) {
            done += fibers[i].state == DONE;
            at_block += fibers[i].state == AT_BLOCK;
        }
        if (at_block && at_block + done == n_fibers) {
            for (unsigned i = 0; i < n_fibers; ++i)
                if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
        } else if (!ran && done < n_fibers) {
            failure = "deadlock: divergent barrier or warp collective";
        }
    }
}
void make_fibers(SimIndex block) {
    if (!fibers) {
        fibers = new Fiber[MAX_THREADS]();
        stacks = static_cast<char*>(mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    n_fibers = block.x * block.y * block.z;
    for (unsigned i = 0; i < n_fibers; ++i)
        fibers[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
}
void run_threads(SimIndex block) {
    SimIndex& t = sim_state.thread;
    for (t.z = 0; t.z < block.z; ++t.z)
        for (t.y = 0; t.y < block.y; ++t.y)
            for (t.x = 0; t.x < block.x; ++t.x) kernel(kernel_args);
}
void run_block(SimMode mode, size_t shared) {
    char* memory = static_cast<char*>(sim_state.shared);
    switch (mode) {
        case SIM_THREADS: run_threads(sim_state.block_size); break;
        case SIM_BLOCKS:
            sim_state.thread = {0, 0, 0};
            kernel(kernel_args);
            break;
        default:
            memset(memory, POISON, shared + GUARD);
            run_fibers();
            if (std::any_of(memory + shared, memory + shared + GUARD, [](char c) { return c != POISON; }))
                failure = "shared memory written past its end";
    }
}
}  // namespace

std::string standin::run_grid(SimMode mode, void (*run)(void**), void** args, SimIndex grid, SimIndex block,
                              size_t shared) {
    std::vector<char> memory(shared + GUARD + 16, POISON);
    SimState& s = sim_state;
    s.shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) & ~uintptr_t(15));
    s.lane = 0;
    kernel = run;
    kernel_args = args;
    failure.clear();
    if (mode == SIM_ONE) {
        s.grid_size = s.block_size = {1, 1, 1};
        s.thread = s.block = {0, 0, 0};
        run(args);
        return failure;
    }
    s.grid_size = grid;
    s.block_size = block;
    if (mode == SIM_FIBERS) make_fibers(block);
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x && failure.empty(); ++x) {
                s.block = {x, y, z};
                run_block(mode, shared);
            }
    return failure.empty() ? failure : "block " + std::to_string(s.block.x) + ": " + failure;
}

// ---- what kernels call (include/fibers.h)
extern "C" {
void sim_block_barrier() {
    running->state = AT_BLOCK;
    leave();
}
void sim_warp_barrier(unsigned mask) {
    running->state = AT_WARP;
    running->mask = mask;
    leave();
}
void sim_exchange(unsigned mask, const uint32_t* words, int n) {
    running->turn ^= 1;
    std::copy(words, words + n, running->words[running->turn]);
    sim_warp_barrier(mask);
}
uint32_t sim_word(unsigned lane, int i) { return fibers[running_number / WARP * WARP + lane].words[running->turn][i]; }
unsigned sim_active(unsigned mask) { return running->active[running->turn] & mask; }
void sim_async_copy(void* to, const void* from) { running->copies.push_back({to, from, running->committed}); }
void sim_async_commit() { ++running->committed; }
void sim_async_wait(int groups_left) {
    auto& copies = running->copies;
    auto end = copies.begin();
    for (; end != copies.end() && end->group + unsigned(groups_left) < running->committed; ++end)
        memcpy(end->to, end->from, 16);
    copies.erase(copies.begin(), end);
}
}

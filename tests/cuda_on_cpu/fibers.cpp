// The scheduler of the simulator: every thread of a CUDA block is a fiber, blocks run one after the other in random order.
//
// Compiled without instrumentation, into a library of its own that all kernels of a process share. -DSIM_ASAN and -DSIM_TSAN announce the stack switches to the sanitizers. ThreadSanitizer
// is told of an order between two threads only where a barrier makes one, with one sync object a barrier generation: with
// a single object a thread that runs ahead would seem ordered after everybody. Neighbouring blocks use two sets of fibers
// and stacks, so that they stay unordered with each other.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#ifdef SIM_ASAN
extern "C" {
void __asan_unpoison_memory_region(const volatile void* address, size_t size);
void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
}
#define ASAN(statement) statement
#else
#define ASAN(statement)
#endif
#ifdef SIM_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#define TSAN(statement) statement
#else
#define TSAN(statement)
#endif

struct uint3 { unsigned x, y, z; };
enum SimBarrier { SIM_BLOCK = 1, SIM_WARP = 2 };

// Another stack, and what a call must preserve; swapcontext would ask the kernel for the signal mask, twice a switch,
// which takes longer than what a thread does between two barriers.
#ifdef __x86_64__
using Context = void*;  // the top of a stack that is not running: six registers, and where to go on
extern "C" void sim_switch(Context* from, const Context* to);
asm(R"(
    .text
    .hidden sim_switch
    .globl sim_switch
    .type sim_switch, @function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size sim_switch, .-sim_switch
)");
void sim_prepare(Context* context, char* stack, size_t size, void (*start)()) {
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15));
    *--top = nullptr;  // start returns nowhere; the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(start);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    *context = top;
}
#else
#include <ucontext.h>
using Context = ucontext_t;
void sim_switch(Context* from, const Context* to) { swapcontext(from, to); }
void sim_prepare(Context* context, char* stack, size_t size, void (*start)()) {
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = size;
    context->uc_link = nullptr;
    makecontext(context, start, 0);
}
#endif

namespace {
constexpr size_t STACK = 128 << 10, CANARY = 64;
constexpr unsigned MAX_COPIES = 256;
constexpr unsigned NO_ORDER = 1;  // __tsan_switch_to_fiber: the switch itself orders nothing

struct Copy { void* to; const void* from; unsigned group; };
enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
struct Thread {
    Context context;
    std::unique_ptr<char[]> stacks{new char[2 * STACK]};
    uint3 index;
    unsigned linear;
    State state;
    int line;                        // of the barrier it waits at
    unsigned generation[3];          // barriers passed, per kind
    uint32_t words[2][6];            // exchanged with the warp; two sets, so that a fast lane cannot overwrite a slow one's
    unsigned set;
    Copy copies[MAX_COPIES];         // asynchronous copies [first, last) under way, a ring
    unsigned first_copy, last_copy, committed;
    void* asan_stack = nullptr;
    void* tsan_fiber[2] = {nullptr, nullptr};
};

std::vector<Thread> threads;
Thread* running;
Context scheduler;
uint3 block_index;
unsigned parity;                     // which of the two sets of stacks and fibers this block uses
char* shared;
uint64_t random_state;
char error[256];
void (*kernel_body)(void*);
void* kernel_args;
// for the sanitizers: the scheduler's own stack and fiber, and addresses for TSan to order threads by
[[maybe_unused]] const void* scheduler_bottom;
[[maybe_unused]] size_t scheduler_size;
[[maybe_unused]] void *scheduler_asan, *scheduler_tsan;
[[maybe_unused]] char launch_started, launch_ended, barrier_object[3][32][3];  // [kind][warp][generation % 3]

uint64_t draw(uint64_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}
template <class T> void shuffle(std::vector<T>& items) {
    if (random_state)
        for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw(i)]);
}
void fail(const char* what, int line, int other) {
    if (!*error)
        snprintf(error, sizeof error, "%s (block %u, source lines %d and %d)", what, block_index.x, line, other);
}

char* stack_of(const Thread& thread) { return thread.stacks.get() + parity * STACK; }

void leave([[maybe_unused]] bool for_ever) {
    Thread* me = running;
    ASAN(__sanitizer_start_switch_fiber(for_ever ? nullptr : &me->asan_stack, scheduler_bottom, scheduler_size));
    TSAN(__tsan_switch_to_fiber(scheduler_tsan, NO_ORDER));
    sim_switch(&me->context, &scheduler);
    ASAN(__sanitizer_finish_switch_fiber(me->asan_stack, nullptr, nullptr));
}
void enter(Thread& thread) {
    running = &thread;
    ASAN(__sanitizer_start_switch_fiber(&scheduler_asan, stack_of(thread), STACK));
    TSAN(if (!thread.tsan_fiber[parity]) thread.tsan_fiber[parity] = __tsan_create_fiber(0));
    TSAN(__tsan_switch_to_fiber(thread.tsan_fiber[parity], NO_ORDER));
    sim_switch(&scheduler, &thread.context);
    ASAN(__sanitizer_finish_switch_fiber(scheduler_asan, nullptr, nullptr));
}
void fiber_main() {
    ASAN(__sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size));
    TSAN(__tsan_acquire(&launch_started));
    kernel_body(kernel_args);
    TSAN(__tsan_release(&launch_ended));
    if (running->first_copy != running->last_copy) fail("a thread exited with asynchronous copies under way", 0, 0);
    running->state = DONE;
    leave(true);
}
void prepare(Thread& thread) {
    thread.state = READY;
    thread.generation[SIM_BLOCK] = thread.generation[SIM_WARP] = 0;
    thread.first_copy = thread.last_copy = thread.committed = 0;
    ASAN(__asan_unpoison_memory_region(stack_of(thread), STACK));  // frames of a thread that left for ever
    sim_prepare(&thread.context, stack_of(thread), STACK, fiber_main);
}

// Lets threads [first, last) go on if all of them wait at the same barrier; reports what a GPU would hang on.
bool release(State waiting, size_t first, size_t last) {
    size_t done = 0, arrived = 0;
    int line = 0;
    for (size_t i = first; i < last; ++i) {
        if (threads[i].state == DONE) { ++done; continue; }
        if (threads[i].state != waiting) return false;
        if (arrived++ && threads[i].line != line) fail("threads wait at different barriers", line, threads[i].line);
        line = threads[i].line;
    }
    if (!arrived) return false;
    if (done) fail("barrier or warp collective after some threads have exited", line, line);
    for (size_t i = first; i < last; ++i)
        if (threads[i].state == waiting) threads[i].state = READY;
    return true;
}

void run_block() {
    std::vector<Thread*> order;
    for (Thread& thread : threads) {
        prepare(thread);
        order.push_back(&thread);
    }
    for (size_t done = 0; done < threads.size() && !*error;) {
        bool progress = false;
        shuffle(order);
        for (Thread* thread : order)
            if (thread->state == READY) {
                enter(*thread);
                progress = true;
                done += thread->state == DONE;
            }
        for (size_t i = 0; i < threads.size(); i += 32) progress |= release(AT_WARP_BARRIER, i, i + 32);
        progress |= release(AT_BLOCK_BARRIER, 0, threads.size());
        if (!progress) {
            auto stuck = [](State s) { for (Thread& t : threads) if (t.state == s) return t.line; return 0; };
            fail("deadlock: divergent barrier or warp collective", stuck(AT_BLOCK_BARRIER), stuck(AT_WARP_BARRIER));
        }
    }
}

void make_threads(const unsigned* block) {
    const size_t n = size_t(block[0]) * block[1] * block[2];
    if (threads.size() != n) {
        TSAN(for (Thread& t : threads) for (void* fiber : t.tsan_fiber) if (fiber) __tsan_destroy_fiber(fiber));
        threads = std::vector<Thread>(n);
    }
    for (unsigned i = 0; i < n; ++i) {
        threads[i].linear = i;
        threads[i].index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    }
}
}  // namespace

uint3 sim_thread_index() { return running->index; }
uint3 sim_block_index() { return block_index; }
unsigned sim_lane() { return running->linear % 32; }
void* sim_shared() { return shared; }

void sim_wait(SimBarrier which, int line) {
    Thread* me = running;
    [[maybe_unused]] char* object =
        &barrier_object[which][which == SIM_WARP ? me->linear / 32 : 0][me->generation[which]++ % 3];
    TSAN(__tsan_release(object));
    me->state = which == SIM_BLOCK ? AT_BLOCK_BARRIER : AT_WARP_BARRIER;
    me->line = line;
    leave(false);
    TSAN(__tsan_acquire(object));
}
void sim_exchange(const uint32_t* words, int n, int line) {
    Thread* me = running;
    me->set ^= 1;
    for (int i = 0; i < n; ++i) me->words[me->set][i] = words[i];
    me->state = AT_WARP_BARRIER;
    me->line = line;
    leave(false);
}
uint32_t sim_word_of(unsigned lane, int i) { return threads[running->linear / 32 * 32 + lane].words[running->set][i]; }

void sim_copy_later(void* to, const void* from) {
    Thread* me = running;
    if (me->last_copy - me->first_copy == MAX_COPIES) fail("more asynchronous copies under way than the simulator holds", 0, 0);
    me->copies[me->last_copy++ % MAX_COPIES] = {to, from, me->committed};
}
void sim_copy_commit() { ++running->committed; }
bool sim_copy_next(int groups_left, void** to, const void** from) {
    Thread* me = running;
    const Copy& copy = me->copies[me->first_copy % MAX_COPIES];
    if (me->first_copy == me->last_copy || copy.group + groups_left >= me->committed) return false;
    *to = copy.to;
    *from = copy.from;
    ++me->first_copy;
    return true;
}

extern "C" const char* sim_error() { return error; }

int sim_launch(const unsigned* grid, const unsigned* block, size_t bytes, uint64_t seed, void (*body)(void*), void* args) {
    kernel_body = body;
    kernel_args = args;
    random_state = seed * 0x9E3779B97F4A7C15ull;
    *error = 0;
    make_threads(block);
    for (Thread& thread : threads) thread.set = 0;
    std::vector<unsigned> blocks(grid[0]);
    std::vector<char*> memory(grid[0]);  // shared memory: a block's own, so that sanitizers see its end and no other block
    for (unsigned i = 0; i < grid[0]; ++i) {
        blocks[i] = i;
#ifdef SIM_ASAN
        memory[i] = static_cast<char*>(malloc(bytes));
        memset(memory[i], 0xFF, bytes);
#else
        memory[i] = static_cast<char*>(malloc(bytes + CANARY));
        memset(memory[i], 0xFF, bytes + CANARY);
#endif
    }
    shuffle(blocks);
    parity = 0;
    TSAN(scheduler_tsan = __tsan_get_current_fiber());
    TSAN(__tsan_release(&launch_started));
    for (unsigned i : blocks) {
        block_index = {i, 0, 0};
        shared = memory[i];
        run_block();
        parity ^= 1;
#ifndef SIM_ASAN
        for (size_t k = bytes; k < bytes + CANARY; ++k)
            if (shared[k] != char(0xFF)) fail("shared memory written past its end", 0, 0);
#endif
        if (*error) break;
    }
    TSAN(__tsan_acquire(&launch_ended));
    for (char* block_memory : memory) free(block_memory);
    return *error != 0;
}

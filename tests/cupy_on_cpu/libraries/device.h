// The device behind all stand-ins: memory, streams, events, graphs, counters. It lives in libcuda.so.1, which the other
// libraries (cudart, cublas, cusolver, curand, nvrtc, CuPy's thrust) are linked against.
//
// What it is not: a device has no memory of its own (pointers are host pointers), no time, no parallel work. Work is
// done in the thread that asks for it, either at once or, with STANDIN_ASYNC, when something waits for it.
//
// Environment, read once a process:
//   STANDIN_MEMORY    bytes of memory of each device, 8 GiB by default; allocations beyond it fail as on a GPU
//   STANDIN_DEVICES   number of devices, 1 by default; they cannot reach each other's memory
//   STANDIN_PEERS     set to anything: they can
//   STANDIN_CC        compute capability, 80 by default
//   STANDIN_ASYNC     0, the default: every call is done when it returns. Any other number is a seed: work waits in its
//                     stream until something waits for it; but at random moments one stream takes a step, or does all
//                     that it was given, while the others lag behind
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace standin {
using Work = std::function<void()>;

// ---- counters: standin.py reads them
void count(const char* what, uint64_t n = 1);

// ---- devices
int n_devices();
bool has_peers();
int capability();
int& current_device();  // of this thread
std::recursive_mutex& lock();

// ---- memory
enum Kind { HOST = 0, DEVICE = 1, PINNED = 2, MANAGED = 3 };
struct Block {
    uintptr_t start = 0;
    size_t size = 0;
    Kind kind = HOST;
    int device = 0;
};
size_t total_memory();
size_t used_memory(int device);
void* allocate(size_t size, Kind kind);  // nullptr: out of memory
bool release(void* p, Kind kind);        // false: no such block
Block block_of(const void* p);           // of kind HOST: not ours
bool within_reach(const void* p);        // false: memory of a device that the current one cannot reach

// A copy as cudaMemcpyAsync makes it: `rows` of `width` bytes. Pageable host memory holds the host, as on a GPU.
void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int kind,
          void* stream, bool synchronous);
void set(void* to, int value, size_t n, void* stream);

// ---- streams and events; a null stream is the current device's default stream
void enqueue(void* stream, Work work);  // done now, later (STANDIN_ASYNC), or kept for a graph
void progress();                        // with STANDIN_ASYNC: something may get done
bool stream_idle(void* stream);
void finish_stream(void* stream);
void finish_device();
void* new_stream(bool blocking);
bool delete_stream(void* stream);
void* new_event();
void delete_event(void* event);
void record(void* event, void* stream);
void wait(void* stream, void* event);
void finish_event(void* event);
bool event_done(void* event);
double event_time(void* event);  // host seconds

// ---- graphs: work captured from a stream, and from those that wait for its events; done again in the order given
bool begin_capture(void* stream);  // false: a default stream, or one that is capturing already
void* end_capture(void* stream);   // a graph; nullptr: the stream was not capturing
bool is_capturing(void* stream);
void* copy_graph(void* graph);
void delete_graph(void* graph);
void launch_graph(void* graph, void* stream);
}  // namespace standin

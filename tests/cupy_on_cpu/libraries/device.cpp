// The device behind all stand-ins; device.h says what it is and is not.
#include "device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace standin {
namespace {
uint64_t number(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}
const uint64_t SEED = number("STANDIN_ASYNC", 0);

uint64_t draw(uint64_t below) {  // xorshift
    static uint64_t state = SEED * 0x9E3779B97F4A7C15ull | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
using Guard = std::lock_guard<std::recursive_mutex>;

struct Op {
    Work work;
    std::vector<std::shared_ptr<Op>> after;
    bool done = false;
};
using Ref = std::shared_ptr<Op>;
struct Graph {
    std::vector<Work> works;
};
struct Stream {
    int device = 0;
    bool blocking = true, is_default = false;
    std::deque<Ref> pending;
    Ref tail;
    std::shared_ptr<Graph> captured;  // while it is capturing
};
struct Event {
    Ref op;
    double time = 0;
    std::weak_ptr<Graph> captured;  // that it was recorded in, if so
};

// Never destroyed: Python frees arrays while the process ends.
std::map<std::string, uint64_t>& counters = *new std::map<std::string, uint64_t>;
std::map<uintptr_t, Block>& blocks = *new std::map<uintptr_t, Block>;
std::map<int, size_t>& used = *new std::map<int, size_t>;
std::vector<Stream*>& streams = *new std::vector<Stream*>;

Stream* default_stream(int device) {
    static std::map<int, Stream*>& all = *new std::map<int, Stream*>;
    Stream*& s = all[device];
    if (!s) {
        s = new Stream{device, true, true, {}, nullptr, nullptr};
        streams.push_back(s);
    }
    return s;
}
Stream* stream_of(void* handle) {  // 0, 1 and 2 name default streams
    return reinterpret_cast<uintptr_t>(handle) <= 2 ? default_stream(current_device()) : static_cast<Stream*>(handle);
}
Event* event_of(void* handle) { return static_cast<Event*>(handle); }

// An operation and all that must come before it, without recursion: chains are long.
void run(const Ref& last) {
    if (!last || last->done) return;
    std::vector<Ref> stack{last};
    while (!stack.empty()) {
        const Ref top = stack.back();
        if (top->done) {
            stack.pop_back();
        } else if (!top->after.empty()) {
            const Ref before = top->after.back();
            top->after.pop_back();
            if (before && !before->done) stack.push_back(before);
        } else {
            top->done = true;
            if (top->work) std::exchange(top->work, nullptr)();
            stack.pop_back();
        }
    }
}
// The default stream waits for all blocking streams of its device, and they for it.
bool ordered(const Stream* a, const Stream* b) {
    return a != b && a->device == b->device && a->blocking && b->blocking && (a->is_default || b->is_default);
}
Ref push(Stream* s, Work work, const Ref& extra = nullptr) {
    const Ref op = std::make_shared<Op>();
    op->work = std::move(work);
    const auto after = [&op](const Ref& before) {
        if (before && !before->done) op->after.push_back(before);
    };
    after(s->tail);
    after(extra);
    for (const Stream* other : streams)
        if (ordered(s, other)) after(other->tail);
    s->tail = op;
    if (SEED)
        s->pending.push_back(op);
    else
        run(op);
    return op;
}
void finish(Stream* s) {
    run(s->tail);
    s->pending.clear();
}
}  // namespace

// ---- counters and devices
std::recursive_mutex& lock() {
    static std::recursive_mutex& mutex = *new std::recursive_mutex;
    return mutex;
}
void count(const char* what, uint64_t n) {
    const Guard guard(lock());
    counters[what] += n;
}
int n_devices() {
    static const int n = int(number("STANDIN_DEVICES", 1));
    return n;
}
bool has_peers() {
    static const bool has = getenv("STANDIN_PEERS") != nullptr;
    return has;
}
int capability() {
    static const int n = int(number("STANDIN_CC", 80));
    return n;
}
int& current_device() {
    thread_local int device = 0;
    return device;
}

// ---- memory
size_t total_memory() {
    static const size_t n = number("STANDIN_MEMORY", 8ull << 30);
    return n;
}
size_t used_memory(int device) {
    const Guard guard(lock());
    return used[device];
}
void* allocate(size_t size, Kind kind) {
    const Guard guard(lock());
    const int device = current_device();
    if (kind != PINNED && used[device] + size > total_memory()) return nullptr;
    void* p = nullptr;
    if (posix_memalign(&p, 512, size ? size : 1)) return nullptr;
    if (kind == DEVICE) memset(p, 0xFF, size);  // NaN, if read before it is written
    blocks[uintptr_t(p)] = Block{uintptr_t(p), size, kind, device};
    if (kind != PINNED) used[device] += size;
    return p;
}
bool release(void* p, Kind kind) {
    const Guard guard(lock());
    const auto it = blocks.find(uintptr_t(p));
    if (it == blocks.end() || (it->second.kind == PINNED) != (kind == PINNED)) return false;
    if (kind != PINNED) used[it->second.device] -= it->second.size;
    blocks.erase(it);
    free(p);
    return true;
}
Block block_of(const void* p) {
    const Guard guard(lock());
    auto it = blocks.upper_bound(uintptr_t(p));
    if (it == blocks.begin()) return {};
    --it;
    const size_t size = it->second.size ? it->second.size : 1;
    return uintptr_t(p) < it->second.start + size ? it->second : Block{};
}
bool within_reach(const void* p) {
    if (n_devices() == 1 || has_peers()) return true;
    const Block block = block_of(p);
    return block.kind != DEVICE || block.device == current_device();
}

void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int kind,
          void* stream, bool synchronous) {
    const Guard guard(lock());
    const Kind source = block_of(from).kind, target = block_of(to).kind;
    const bool from_host = source == HOST || source == PINNED, to_host = target == HOST || target == PINNED;
    const bool pinned = source == PINNED || target == PINNED;
    const std::string name =
        std::string("copy ") + (from_host ? "host" : "device") + " to " + (to_host ? "host" : "device");
    count((name + (synchronous ? ", synchronous" : pinned ? ", pinned" : "")).c_str());
    count((name + ", bytes").c_str(), width * rows);
    const bool claims_from_host = kind == 0 || kind == 1, claims_to_host = kind == 0 || kind == 2;  // 4: it may be any
    if (kind < 4 && width * rows > 0 && (claims_from_host != from_host || claims_to_host != to_host))
        count("copy in a direction that the pointers contradict");
    const auto copy_rows = [=](const void* start, size_t pitch) {
        for (size_t r = 0; r < rows; ++r)
            memmove(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(start) + r * pitch, width);
    };
    if (!synchronous && SEED && source == HOST && !to_host) {  // staged: the host's memory is free at once
        const auto staged = std::make_shared<std::vector<char>>(width * rows);
        for (size_t r = 0; r < rows; ++r)
            memcpy(staged->data() + r * width, static_cast<const char*>(from) + r * from_pitch, width);
        enqueue(stream, [=] { copy_rows(staged->data(), width); });
        return;
    }
    enqueue(stream, [=] { copy_rows(from, from_pitch); });
    if (synchronous || source == HOST || target == HOST) finish_stream(stream);
}
void set(void* to, int value, size_t n, void* stream) {
    count("memset");
    enqueue(stream, [=] { memset(to, value, n); });
}

// ---- streams and events
void enqueue(void* stream, Work work) {
    const Guard guard(lock());
    Stream* s = stream_of(stream);
    if (s->captured) {
        s->captured->works.push_back(std::move(work));
        return;
    }
    push(s, std::move(work));
    progress();
}
void progress() {  // now and then a stream takes a step, or gets ahead of all others
    if (!SEED) return;
    const Guard guard(lock());
    if (draw(6) || streams.empty()) return;
    Stream* s = streams[draw(streams.size())];
    if (draw(3) == 0) return finish(s);
    while (!s->pending.empty() && s->pending.front()->done) s->pending.pop_front();
    if (!s->pending.empty()) run(Ref(s->pending.front()));
}
bool stream_idle(void* stream) {
    const Guard guard(lock());
    const Stream* s = stream_of(stream);
    return !s->tail || s->tail->done;
}
void finish_stream(void* stream) {
    const Guard guard(lock());
    finish(stream_of(stream));
}
void finish_device() {
    const Guard guard(lock());
    for (size_t i = 0; i < streams.size(); ++i) finish(streams[i]);  // by number: callbacks may make streams
}
void* new_stream(bool blocking) {
    const Guard guard(lock());
    streams.push_back(new Stream{current_device(), blocking, false, {}, nullptr, nullptr});
    return streams.back();
}
bool delete_stream(void* stream) {
    const Guard guard(lock());
    for (size_t i = 0; i < streams.size(); ++i)
        if (streams[i] == stream && !streams[i]->is_default) {
            finish(streams[i]);
            delete streams[i];
            streams.erase(streams.begin() + long(i));
            return true;
        }
    return false;
}
void* new_event() { return new Event; }
void delete_event(void* event) { delete event_of(event); }
void record(void* event, void* stream) {
    const Guard guard(lock());
    Event* e = event_of(event);
    Stream* s = stream_of(stream);
    e->captured = s->captured;
    if (s->captured) return;
    e->op = push(s, nullptr);
    e->time = now();
    progress();
}
void wait(void* stream, void* event) {
    const Guard guard(lock());
    Stream* s = stream_of(stream);
    if (const auto graph = event_of(event)->captured.lock()) {
        s->captured = graph;  // from now on this stream's work goes to the graph too
        return;
    }
    if (s->captured) return;  // what the event stands for is before the graph
    push(s, nullptr, event_of(event)->op);
    progress();
}
void finish_event(void* event) {
    const Guard guard(lock());
    run(event_of(event)->op);
}
bool event_done(void* event) {
    const Guard guard(lock());
    progress();
    const Ref& op = event_of(event)->op;
    return !op || op->done;
}
double event_time(void* event) { return event_of(event)->time; }

// ---- graphs
bool begin_capture(void* stream) {
    const Guard guard(lock());
    Stream* s = stream_of(stream);
    if (s->is_default || s->captured) return false;
    s->captured = std::make_shared<Graph>();
    return true;
}
void* end_capture(void* stream) {
    const Guard guard(lock());
    const auto graph = stream_of(stream)->captured;
    if (!graph) return nullptr;
    for (Stream* s : streams)
        if (s->captured == graph) s->captured = nullptr;
    return new Graph(*graph);
}
bool is_capturing(void* stream) {
    const Guard guard(lock());
    return bool(stream_of(stream)->captured);
}
void* copy_graph(void* graph) { return new Graph(*static_cast<Graph*>(graph)); }
void delete_graph(void* graph) { delete static_cast<Graph*>(graph); }
void launch_graph(void* graph, void* stream) {
    count("graph launches");
    enqueue(stream, [works = static_cast<Graph*>(graph)->works] {
        for (const Work& work : works) work();
    });
}
}  // namespace standin

// ---- for standin.py: "name\tnumber\n" for every counter; returns the room that all of them need
extern "C" size_t standin_counters(char* out, size_t size) {
    const standin::Guard guard(standin::lock());
    std::string text;
    for (const auto& [name, n] : standin::counters) text += name + "\t" + std::to_string(n) + "\n";
    if (text.size() < size) memcpy(out, text.c_str(), text.size() + 1);
    return text.size() + 1;
}

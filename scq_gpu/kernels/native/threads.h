// Threads that share the tasks of a call, and the interrupt that ends it early.
#pragma once
#include <cstdint>
#include <functional>

namespace scq {

// A call in progress. Its tasks are numbered; a thread takes the next number when it is free.
class Job {
 public:
  // Tell if the call is over: another task failed, or the caller was interrupted. Long tasks ask between pieces of some
  // milliseconds; in the calling thread this also looks for an interrupt.
  virtual bool stopped() = 0;

 protected:
  ~Job() = default;
};

using Task = std::function<void(Job& job, int64_t number, int thread)>;

// Run tasks 0 .. count - 1 on at most `threads` threads, of which the caller is one; `thread` numbers them from 0.
// `interrupted` is asked by the caller's thread about every 20 ms. Return false if it said yes; the answer is then void.
// An exception of a task is thrown again here, once all threads have left the job.
bool run(int64_t count, int threads, const std::function<bool()>& interrupted, const Task& task);

}  // namespace scq

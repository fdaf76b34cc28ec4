#include "threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace scq {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto PATIENCE = std::chrono::milliseconds(20);

class SharedJob final : public Job {
 public:
  SharedJob(int64_t count, const std::function<bool()>& interrupted, const Task& task)
      : count_(count), interrupted_(interrupted), task_(task), caller_(std::this_thread::get_id()) {}

  void work(int thread) {
    try {
      for (int64_t number; !stopped() && (number = next_.fetch_add(1)) < count_;) task_(*this, number, thread);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
      stop_ = true;
    }
  }

  bool stopped() override {
    if (std::this_thread::get_id() == caller_ && !stop_ && Clock::now() - asked_ > PATIENCE) ask();
    return stop_;
  }

  void ask() {
    asked_ = Clock::now();
    if (interrupted_()) interrupt = stop_ = true;
  }

  std::mutex mutex;
  std::condition_variable left;
  int helpers = 0;  // threads that work on this job beside the caller
  std::exception_ptr error;
  std::atomic<bool> interrupt{false};

 private:
  int64_t count_;
  const std::function<bool()>& interrupted_;
  const Task& task_;
  std::thread::id caller_;
  Clock::time_point asked_ = Clock::now();
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
};

// Threads that wait for jobs. It lives as long as the process: at exit the system ends its threads.
class Pool {
 public:
  // Offer a job to `count` threads, which are started when they are first needed.
  void offer(SharedJob& job, int count) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int i = 0; i < count; i++) offers_.push_back({&job, i + 1});
      try {
        for (; size_ < count; size_++) std::thread(&Pool::serve, this).detach();
      } catch (const std::system_error&) {
        // the system allows no more threads: those there are, and the caller, do the work
      }
    }
    waiting_.notify_all();
  }

  // Take back what no thread has accepted yet.
  void withdraw(SharedJob& job) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto last = std::remove_if(offers_.begin(), offers_.end(), [&](const Offer& offer) { return offer.job == &job; });
    offers_.erase(last, offers_.end());
  }

 private:
  struct Offer {
    SharedJob* job;
    int thread;
  };

  void serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      waiting_.wait(lock, [&] { return !offers_.empty(); });
      Offer offer = offers_.front();
      offers_.pop_front();
      {
        // counted before the pool's lock is left: the caller withdraws offers, then waits for those that were accepted
        std::lock_guard<std::mutex> joined(offer.job->mutex);
        offer.job->helpers++;
      }
      lock.unlock();
      offer.job->work(offer.thread);
      std::lock_guard<std::mutex> leaving(offer.job->mutex);
      offer.job->helpers--;
      offer.job->left.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable waiting_;
  std::deque<Offer> offers_;
  int size_ = 0;
};

std::atomic<Pool*> pool{nullptr};

// A child process has none of its parent's threads, and perhaps a lock that one of them held: it starts anew.
void forget_pool() { pool = new Pool; }

Pool& the_pool() {
  static std::once_flag made;
  std::call_once(made, [] {
    forget_pool();
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, forget_pool);
#endif
  });
  return *pool;
}

}  // namespace

bool run(int64_t count, int threads, const std::function<bool()>& interrupted, const Task& task) {
  SharedJob job(count, interrupted, task);
  int helpers = (int)std::min<int64_t>(threads, count) - 1;
  if (helpers <= 0) {
    job.work(0);
  } else {
    Pool& shared = the_pool();
    shared.offer(job, helpers);
    job.work(0);
    shared.withdraw(job);
    std::unique_lock<std::mutex> lock(job.mutex);
    while (!job.left.wait_for(lock, PATIENCE, [&] { return job.helpers == 0; })) {
      lock.unlock();
      job.stopped();
      lock.lock();
    }
  }
  if (job.error) std::rethrow_exception(job.error);
  return !job.interrupt;
}

}  // namespace scq

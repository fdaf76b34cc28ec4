// Rows by their places, out of several parts, or by their numbers, out of a file.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "kernels.h"

namespace scq {
namespace {

constexpr int64_t PIECE_BYTES = 1 << 20;  // of a task: less takes no longer than to wake a thread

}  // namespace

bool take(const Call& call, const std::vector<Stretch>& parts, int64_t row_bytes, const int64_t* places, int64_t n,
          uint8_t* out, int64_t& unknown) {
  std::vector<const uint8_t*> rows(n);
  for (int64_t i = 0; i < n; i++) {
    auto behind = std::upper_bound(parts.begin(), parts.end(), places[i],
                                   [](int64_t place, const Stretch& part) { return place < part.first; });
    if (behind == parts.begin() || places[i] - behind[-1].first >= behind[-1].rows) {
      unknown = i;
      return true;
    }
    rows[i] = behind[-1].data + (places[i] - behind[-1].first) * row_bytes;
  }
  unknown = -1;
  int64_t step = std::max<int64_t>(1, PIECE_BYTES / std::max<int64_t>(1, row_bytes));
  return run((n + step - 1) / step, call.threads, call.interrupted, [&](Job&, int64_t number, int) {
    for (int64_t i = number * step; i < std::min(n, (number + 1) * step); i++)
      std::memcpy(out + i * row_bytes, rows[i], row_bytes);
  });
}

bool read_rows(const Call& call, int file, int64_t offset, int64_t row_bytes, const int64_t* numbers, int64_t n,
               uint8_t* out, int64_t& missing) {
  std::atomic<int64_t> first{n};
  constexpr int64_t STEP = 64;  // rows of a task
  bool done = run((n + STEP - 1) / STEP, call.threads, call.interrupted, [&](Job& job, int64_t task, int) {
    for (int64_t i = task * STEP; i < std::min(n, (task + 1) * STEP) && !job.stopped(); i++)
      for (int64_t got = 0; got < row_bytes;) {
        ssize_t more = pread(file, out + i * row_bytes + got, row_bytes - got, offset + numbers[i] * row_bytes + got);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) {
          int64_t known = first.load();
          while (i < known && !first.compare_exchange_weak(known, i)) {
          }
          return;
        }
        got += more;
      }
  });
  missing = first.load() == n ? -1 : first.load();
  return done;
}

}  // namespace scq

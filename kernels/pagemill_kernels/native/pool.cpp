#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace pagemill {
namespace {

// Long enough for another to end its last piece, short enough not to be felt where it has lost its core.
constexpr int kSpins = 2000;

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Pool::Pool(int threads) {
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { loop(thread); });
}

Pool::~Pool() {
  ends_.store(true);
  bell_.fetch_add(1);
  wake_all(bell_);
  for (auto& worker : workers_) worker.join();
}

void Pool::share(int count, Call call, void* what) {
  std::uint64_t round = (next_.load(std::memory_order_relaxed) >> 32) + 1;
  Job& job = jobs_[round & 1];
  job.call.store(call, std::memory_order_relaxed);
  job.what.store(what, std::memory_order_relaxed);
  job.count.store(count, std::memory_order_relaxed);
  job.done.store(0, std::memory_order_relaxed);
  next_.store(round << 32);  // who sees this sees what stands above
  bell_.fetch_add(1);
  if (asleep_.load() > 0) wake_all(bell_);
  while (take_one(0)) {
  }
  for (int spins = 0; job.done.load(std::memory_order_acquire) < count; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

bool Pool::take_one(int thread) {
  std::uint64_t seen = next_.load(std::memory_order_acquire);
  for (;;) {
    Job& job = jobs_[(seen >> 32) & 1];
    int piece = static_cast<int>(seen & 0xffffffff);
    if (piece >= job.count.load(std::memory_order_relaxed)) return false;
    Call call = job.call.load(std::memory_order_relaxed);
    void* what = job.what.load(std::memory_order_relaxed);
    // Where it succeeds the round is still the one that was looked at, so what was read is that round's.
    if (!next_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    call(what, piece, thread);
    job.done.fetch_add(1, std::memory_order_release);
    return true;
  }
}

void Pool::loop(int thread) {
  for (;;) {
    // In this order: an end that is rung after the bell was looked at is heard below, one before it is seen here.
    std::uint32_t seen = bell_.load();
    if (ends_.load()) return;
    while (take_one(thread)) {
    }
    for (int spins = 0; bell_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < kSpins) {
        _mm_pause();
        continue;
      }
      asleep_.fetch_add(1);
      if (bell_.load() == seen) sleep_while(bell_, seen);
      asleep_.fetch_sub(1);
    }
  }
}

}  // namespace pagemill

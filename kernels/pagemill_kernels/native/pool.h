// Threads that share a step's work. One pool an engine, called by one thread at a time, which works too.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace pagemill {

// Work is handed out piece by piece, and only pieces are waited for, not threads: one that has lost its core to another process, or has
// not woken yet, costs nothing but its help.
class Pool {
 public:
  explicit Pool(int threads);  // the caller's own among them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(piece, thread) once for each piece from 0 to count - 1, on any thread, and returns when all have returned.
  template <class Body>
  void run(int count, Body&& body) {
    if (count <= 1 || workers_.empty()) {
      for (int piece = 0; piece < count; ++piece) body(piece, 0);
      return;
    }
    auto call = [](void* what, int piece, int thread) { (*static_cast<std::remove_reference_t<Body>*>(what))(piece, thread); };
    share(count, call, &body);
  }

 private:
  using Call = void (*)(void* what, int piece, int thread);
  // Two, used in turn: a thread that comes late may still look at the last round's.
  struct Job {
    std::atomic<Call> call{nullptr};
    std::atomic<void*> what{nullptr};
    std::atomic<int> count{0};
    alignas(64) std::atomic<int> done{0};
  };

  void share(int count, Call call, void* what);
  bool take_one(int thread);  // false: there is none left
  void loop(int thread);

  std::vector<std::thread> workers_;
  Job jobs_[2];
  alignas(64) std::atomic<std::uint64_t> next_{0};  // the round, and the piece that is next in it
  alignas(64) std::atomic<std::uint32_t> bell_{0};  // the round again: what threads sleep on
  std::atomic<int> asleep_{0};
  std::atomic<bool> ends_{false};
};

}  // namespace pagemill

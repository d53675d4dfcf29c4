#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

namespace gm::inline GM_ISA {

namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done`; after a while it yields, since a late partner may need this very core.
template <class Done>
void spin(Done done) {
  for (int i = 0; !done(); i++) {
    if (i < 4000)
      relax();
    else
      sched_yield();
  }
}

}  // namespace

Pool::Pool(int threads) : count_(threads < 1 ? 1 : threads) {
  for (int id = 1; id < count_; id++) workers_.emplace_back([this, id] { loop(id); });
}

Pool::~Pool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& t : workers_) t.join();
}

void Pool::run(const std::function<void(const Worker&)>& region) {
  std::lock_guard<std::mutex> turn(turn_);
  region_ = &region;
  if (count_ > 1) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  region(Worker{0, count_, this});
  if (count_ > 1) barrier();
}

void Pool::barrier() {
  uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
  } else {
    spin([&] { return phase_.load(std::memory_order_acquire) != phase; });
  }
}

void Pool::loop(int id) {
  uint32_t seen = 0;
  for (;;) {
    epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    (*region_)(Worker{id, count_, this});
    barrier();
  }
}

}  // namespace gm::inline GM_ISA

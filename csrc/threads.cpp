#include "threads.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

namespace gm::inline GM_ISA {

namespace {

constexpr uint64_t kField = (uint64_t(1) << 18) - 1;
constexpr uint64_t kTag = (uint64_t(1) << 28) - 1;
static_assert(kMostUnits == int(kField));

struct Range {
  uint64_t tag;
  int begin, end;
  explicit Range(uint64_t bits)
      : tag(bits >> 36), begin(int(bits >> 18 & kField)), end(int(bits & kField)) {}
  Range(uint64_t stage, int b, int e) : tag(stage & kTag), begin(b), end(e) {}
  uint64_t bits() const { return tag << 36 | uint64_t(begin) << 18 | uint64_t(end); }
};

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Takes a quarter of what is left of a share: its owner from the front, so that it reads long
// runs of memory, helpers from the back. Empty if nothing is left, or of this stage nothing is.
Range take(std::atomic<uint64_t>& share, uint64_t stage, bool front) {
  uint64_t seen = share.load(std::memory_order_acquire);
  for (;;) {
    Range all(seen);
    if (all.tag != (stage & kTag) || all.begin >= all.end) return {stage, 0, 0};
    const int n = (all.end - all.begin + 3) / 4;
    const Range mine =
        front ? Range(stage, all.begin, all.begin + n) : Range(stage, all.end - n, all.end);
    const Range rest =
        front ? Range(stage, mine.end, all.end) : Range(stage, all.begin, mine.begin);
    if (share.compare_exchange_weak(seen, rest.bits(), std::memory_order_acq_rel,
                                    std::memory_order_acquire))
      return mine;
  }
}

}  // namespace

Pool::Pool(int threads)
    : count_(threads < 1 ? 1 : threads), shares_(new Share[size_t(threads < 1 ? 1 : threads)]) {
  for (int id = 1; id < count_; id++) workers_.emplace_back([this, id] { loop(id); });
}

Pool::~Pool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& t : workers_) t.join();
}

void Pool::run(Region& region) {
  std::lock_guard<std::mutex> turn(turn_);
  const int stages = region.stages();
  for (int s = 0; s < stages; s++)
    if (region.units(s) > kMostUnits) throw std::length_error("a stage of too many units");
  if (count_ == 1) {
    for (int s = 0; s < stages; s++) {
      if (int n = region.units(s)) region.work(s, 0, n, Worker{0, 1});
      region.passed(s);
    }
    return;
  }
  region_ = &region;
  first_ = current_.load(std::memory_order_relaxed) / 2;
  advance(first_ - 1);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_part(0);
}

// Lets the workers at a stage.
void Pool::open(uint64_t stage, int units) {
  left_.store(units, std::memory_order_relaxed);
  for (int id = 0; id < count_; id++) {
    // Rounded so that a single unit is the caller's, who is never asleep.
    const auto begin = [&](int i) { return int((int64_t(units) * i + count_ - 1) / count_); };
    const Range share(stage, begin(id), begin(id + 1));
    shares_[size_t(id)].range.store(share.bits(), std::memory_order_release);
  }
  current_.store(2 * stage, std::memory_order_release);
}

// Goes to the first stage after this one that has work, or to the end of the region.
void Pool::advance(uint64_t stage) {
  const uint64_t end = first_ + uint64_t(region_->stages());
  while (++stage < end)
    if (const int units = region_->units(int(stage - first_))) return open(stage, units);
  current_.store(2 * end + 1, std::memory_order_release);
}

// Counts finished units of a stage; the last ones let the workers at the next.
void Pool::report(uint64_t stage, int done) {
  if (left_.fetch_sub(done, std::memory_order_acq_rel) == done) advance(stage);
}

// Works on a stage while there is something to take; returns the units not reported yet.
int Pool::help(uint64_t stage, int id) {
  int done = 0;
  for (int i = 0; i < count_; i++) {
    auto& share = shares_[size_t((id + i) % count_)].range;
    for (;;) {
      const Range mine = take(share, stage, i == 0);
      if (mine.begin == mine.end) break;
      // Units that were taken keep the region from ending: now, and only now, it is safe to read.
      region_->work(int(stage - first_), mine.begin, mine.end, Worker{id, count_});
      done += mine.end - mine.begin;
      if (giving_way_.load(std::memory_order_relaxed)) {
        report(stage, done);
        done = 0;
        sched_yield();
      }
    }
  }
  return done;
}

// Until the end of the region.
void Pool::take_part(int id) {
  uint64_t seen = current_.load(std::memory_order_acquire);
  uint64_t reported = 0;  // stages of the region that worker 0 has told of
  for (int spins = 0;;) {
    if (id == 0)
      for (const uint64_t now = seen / 2 - first_; reported < now; reported++)
        region_->passed(int(reported));
    if (seen & 1) return;
    const int done = help(seen / 2, id);
    if (done > 0) {
      spins = 0;
      report(seen / 2, done);
    }
    // After a while it yields: whoever has the last units may need this very core.
    uint64_t now;
    while ((now = current_.load(std::memory_order_acquire)) == seen) {
      if (++spins < 4000)
        relax();
      else
        sched_yield();
    }
    seen = now;
  }
}

void Pool::loop(int id) {
  uint32_t seen = 0;
  for (;;) {
    epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    take_part(id);
  }
}

}  // namespace gm::inline GM_ISA

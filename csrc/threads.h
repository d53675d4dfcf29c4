// One pool per process: a parallel region at a time, workers asleep between regions.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "isa/isa.h"

namespace gm::inline GM_ISA {

// Who does a piece of work: the index of buffers that are a thread's own.
struct Worker {
  int id;
  int count;
};

// Work in stages: all units of a stage are done before any of the next begins. Units of one
// stage may be done in any order, by any worker; which one does them must not show in the result.
class Region {
 public:
  virtual ~Region() = default;
  virtual int stages() const = 0;
  // Units of a stage, at most kMostUnits; none is allowed.
  virtual int units(int stage) const = 0;
  // Does units [begin, end) of a stage.
  virtual void work(int stage, int begin, int end, const Worker& w) const = 0;
  // Called by worker 0 after it saw the end of a stage, which may be after later ones began.
  virtual void passed(int) {}
};

constexpr int kMostUnits = (1 << 18) - 1;

// Stages end when their work is done, not when every worker has come: a worker whose core was
// taken away, or that still wakes up, holds nothing up unless it is in the middle of a unit.
class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  int threads() const { return count_; }
  // While on, workers give up their core between units, when they hold none: another thread of
  // this process has a little to do, and a worker that it displaced within a unit would hold up
  // all the others. May be called at any time.
  void give_way(bool on) { giving_way_.store(on, std::memory_order_relaxed); }
  // Does all of a region, the caller being worker 0. Another thread that calls waits for its
  // turn. Throws std::length_error for a stage of more than kMostUnits.
  void run(Region& region);
  // Calls work(begin, end, worker) for ranges that together are [0, n), in units of `grain`.
  template <class Work>
  void each(int64_t n, int64_t grain, const Work& work);

 private:
  // The units of the stage that a worker begins with and others help with: `tag` in the upper
  // 28 bits (a stage's number, so that a late worker takes nothing of another stage), then
  // begin and end, 18 bits each.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };
  void loop(int id);
  void take_part(int id);
  int help(uint64_t stage, int id);
  void report(uint64_t stage, int done);
  void open(uint64_t stage, int units);
  void advance(uint64_t stage);

  const int count_;
  std::mutex turn_;
  Region* region_ = nullptr;
  uint64_t first_ = 0;  // number of the region's first stage
  // Twice the number of the stage that is worked on, counted through all regions; plus one
  // while there is none and `number` will be the next region's first.
  alignas(64) std::atomic<uint64_t> current_{1};
  alignas(64) std::atomic<int> left_{0};  // units of the stage that are not done
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> giving_way_{false};
  std::unique_ptr<Share[]> shares_;
  std::vector<std::thread> workers_;
};

template <class Work>
void Pool::each(int64_t n, int64_t grain, const Work& work) {
  if (n <= 0) return;
  while ((n + grain - 1) / grain > kMostUnits) grain *= 2;
  struct Loop final : Region {
    int64_t n, grain;
    const Work* work_;
    int stages() const override { return 1; }
    int units(int) const override { return int((n + grain - 1) / grain); }
    void work(int, int begin, int end, const Worker& w) const override {
      (*work_)(begin* grain, end* grain < n ? end * grain : n, w);
    }
  } loop;
  loop.n = n;
  loop.grain = grain;
  loop.work_ = &work;
  run(loop);
}

}  // namespace gm::inline GM_ISA

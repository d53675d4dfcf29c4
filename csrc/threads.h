// One pool per process: a parallel region at a time, workers asleep between regions.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "isa/isa.h"

namespace gm::inline GM_ISA {

class Pool;

// What a kernel knows of its thread. All workers of a region call the same kernels in the
// same order; `barrier` separates phases.
struct Worker {
  int id;
  int count;
  Pool* pool;
  void barrier() const;
  // The half-open share of [0, n) of this worker, in whole multiples of `grain`.
  void share(int64_t n, int64_t grain, int64_t& begin, int64_t& end) const {
    int64_t units = (n + grain - 1) / grain;
    begin = units * id / count * grain;
    end = units * (id + 1) / count * grain;
    if (end > n) end = n;
    if (begin > n) begin = n;
  }
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  int threads() const { return count_; }
  // Runs `region` on every worker, the caller being worker 0; returns when all are done. Another
  // thread that calls waits for its turn.
  void run(const std::function<void(const Worker&)>& region);

 private:
  friend struct Worker;
  void barrier();
  void loop(int id);
  const int count_;
  std::mutex turn_;
  const std::function<void(const Worker&)>* region_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

inline void Worker::barrier() const {
  if (count > 1) pool->barrier();
}

}  // namespace gm::inline GM_ISA

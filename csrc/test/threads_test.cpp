// The thread pool: stages, help, no lost wake-ups, no work while idle.
#include "../threads.h"

#include <sys/resource.h>

#include <chrono>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using namespace gm;
using test::expect;

// More workers than cores as well: nothing may rely on a core each.
constexpr int kCounts[] = {1, 2, 3, 8};

int rounds(int full) { return test::quick ? full / 10 : full; }

// On crowded cores a stage takes milliseconds, and a few rounds must do.
class Budget {
 public:
  bool spent() const { return std::chrono::steady_clock::now() > end_; }

 private:
  std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(2);
};

// Stages of random sizes. Each unit reads what the stage before wrote: plain memory, so that a
// stage that begins too early, or without the right memory order, fails (and the thread
// sanitizer sees it).
class Chain final : public Region {
 public:
  Chain(test::Random& random, int stages) {
    for (int s = 0; s < stages; s++) {
      const int kind = random.below(8);
      const int n = kind == 0 ? 0 : kind < 4 ? 1 + random.below(3) : 1 + random.below(200);
      values_.emplace_back(size_t(n), -1);
      done_.emplace_back(size_t(n), 0);
    }
  }
  int stages() const override { return int(values_.size()); }
  int units(int stage) const override { return int(values_[size_t(stage)].size()); }
  void work(int stage, int begin, int end, const Worker& w) const override {
    if (w.id < 0 || w.id >= w.count) wrong_++;
    if (slow_ == w.id) std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (int i = begin; i < end; i++) {
      int sum = 0;
      if (stage > 0)
        for (int value : values_[size_t(stage) - 1]) sum += value == stage - 1 ? 0 : 1;
      if (sum) wrong_++;
      values_[size_t(stage)][size_t(i)] = stage;
      done_[size_t(stage)][size_t(i)]++;
    }
  }
  void passed(int stage) override {
    if (stage != passed_++) wrong_++;
  }
  // Faults: units not done once, stages not told of in order, values read before they were there.
  int wrong() const {
    int n = wrong_ + (passed_ != stages());
    for (const auto& stage : done_)
      for (int times : stage) n += times != 1;
    return n;
  }
  int slow_ = -1;  // a worker that is always late

 private:
  mutable std::vector<std::vector<int>> values_, done_;
  mutable std::atomic<int> wrong_{0};
  int passed_ = 0;
};

void stages() {
  for (int count : kCounts) {
    Pool pool(count);
    expect(pool.threads() == count, "threads() of %d", count);
    test::Random random(count);
    Budget budget;
    for (int round = 0; round < rounds(2000) && !budget.spent(); round++) {
      Chain chain(random, random.below(40));
      pool.run(chain);
      expect(chain.wrong() == 0, "%d faults with %d workers", chain.wrong(), count);
    }
  }
  Pool none(0);
  expect(none.threads() == 1, "a pool of none still has its caller");
}

// Told to give way, and told otherwise, at any moment.
void giving_way() {
  for (int count : kCounts) {
    Pool pool(count);
    test::Random random(count);
    std::atomic<bool> over{false};
    std::thread guest([&] {
      for (int i = 0; !over; i++) {
        pool.give_way(i % 3 != 0);
        std::this_thread::yield();
      }
    });
    Budget budget;
    for (int round = 0; round < rounds(1000) && !budget.spent(); round++) {
      Chain chain(random, random.below(40));
      pool.run(chain);
      expect(chain.wrong() == 0, "%d faults with %d workers", chain.wrong(), count);
    }
    over = true;
    guest.join();
  }
}

// A worker that is late for every unit, in turn each of them.
void late() {
  Pool pool(3);
  test::Random random(5);
  Budget budget;
  for (int round = 0; round < rounds(60) && !budget.spent(); round++) {
    Chain chain(random, 6);
    chain.slow_ = round % 3;
    pool.run(chain);
    expect(chain.wrong() == 0, "%d faults with a late worker", chain.wrong());
  }
}

// A worker that is held inside a unit does not keep others from the rest of its share.
void helped() {
  Pool pool(2);
  std::atomic<int> others{0};
  const auto work = [&](int64_t begin, int64_t end, const Worker&) {
    if (begin > 0) {
      others += int(end - begin);
      return;
    }
    others += int(end) - 1;
    while (others < 999) std::this_thread::yield();
  };
  pool.each(1000, 1, work);
  expect(others == 999, "%d units were done by others", others.load());
}

void too_many() {
  struct Huge final : Region {
    int stages() const override { return 1; }
    int units(int) const override { return kMostUnits + 1; }
    void work(int, int, int, const Worker&) const override {}
  } huge;
  Pool pool(2);
  bool refused = false;
  try {
    pool.run(huge);
  } catch (const std::length_error&) {
    refused = true;
  }
  expect(refused, "a stage of too many units was not refused");
}

void ranges() {
  for (int count : {1, 3})
    for (int64_t n : {int64_t(0), int64_t(1), int64_t(17), int64_t(4097), int64_t(kMostUnits) * 3})
      for (int64_t grain : {1, 16, 64}) {
        Pool pool(count);
        std::atomic<int64_t> sum{0};
        pool.each(n, grain, [&](int64_t begin, int64_t end, const Worker&) {
          if (begin % grain || begin >= end || end > n) sum -= n;
          sum += end - begin;
        });
        expect(sum == n, "ranges of %d cover %d", int(n), int(sum));
      }
}

// Pauses of varied length let workers fall asleep at every point of their way.
void wakeups() {
  Pool pool(4);
  test::Random random(1);
  std::atomic<int> sum{0};
  Budget budget;
  int count = 0;
  for (; count < rounds(2000) && !budget.spent(); count++) {
    pool.each(4, 1, [&](int64_t begin, int64_t end, const Worker&) { sum += int(end - begin); });
    volatile int x = 0;
    for (int i = random.below(1 << random.below(15)); i > 0; i--) x = x + 1;
  }
  expect(sum == count * 4, "%d of %d units were done", sum.load(), count * 4);
}

void lifetimes() {
  Budget budget;
  for (int round = 0; round < rounds(200) && !budget.spent(); round++) {
    Pool pool(1 + round % 5);
    if (round % 3) pool.each(7, 1, [](int64_t, int64_t, const Worker&) {});
  }
}

double cpu_seconds() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  auto seconds = [](timeval t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

void idle() {
  Pool pool(8);
  pool.each(8, 1, [](int64_t, int64_t, const Worker&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to fall asleep
  double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  double used = cpu_seconds() - before;
  expect(used < 0.03, "%g s of processor time in 0.3 s of idleness", used);
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  test::run("stages follow each other, each unit once", stages);
  test::run("workers that give way", giving_way);
  test::run("a late worker", late);
  test::run("others do the rest of a share", helped);
  test::run("more units than a share can name are refused", too_many);
  test::run("loops cover their range", ranges);
  test::run("no wake-up is lost", wakeups);
  test::run("pools come and go", lifetimes);
  test::run("an idle pool uses no processor", idle);
  return test::result();
}

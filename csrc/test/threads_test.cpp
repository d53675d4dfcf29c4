// The thread pool: regions, barriers, shares, no lost wake-ups, no work while idle.
#include "../threads.h"

#include <sys/resource.h>

#include <chrono>
#include <vector>

#include "check.h"

namespace {

using namespace gm;
using test::expect;

// More workers than cores as well: barriers must not rely on a core each.
constexpr int kCounts[] = {1, 2, 3, 8};

int rounds(int full) { return test::quick ? full / 10 : full; }

// A barrier takes microseconds on free cores and tens of milliseconds on crowded ones, where
// a few rounds must do.
class Budget {
 public:
  bool spent() const { return std::chrono::steady_clock::now() > end_; }

 private:
  std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(2);
};

void shares() {
  for (int count : {1, 2, 3, 7, 16})
    for (int64_t n : {0, 1, 5, 16, 17, 1000, 4097})
      for (int64_t grain : {1, 4, 16, 64}) {
        int64_t next = 0;
        for (int id = 0; id < count; id++) {
          int64_t begin, end;
          Worker{id, count, nullptr}.share(n, grain, begin, end);
          expect(begin == next && end >= begin, "share %d of %d of %d begins at %d", id, count,
                 int(n), int(begin));
          expect(begin % grain == 0 || begin == n, "share begins inside a grain");
          next = end;
        }
        expect(next == n, "shares of %d end at %d", int(n), int(next));
      }
}

void regions() {
  for (int count : kCounts) {
    Pool pool(count);
    expect(pool.threads() == count, "threads() of %d", count);
    std::vector<int> seen(static_cast<size_t>(count) * 16);  // a cache line each
    Budget budget;
    for (int round = 1; round <= rounds(1000) && !budget.spent(); round++) {
      pool.run([&](const Worker& w) { seen[static_cast<size_t>(w.id) * 16] += w.count; });
      for (int id = 0; id < count; id++)
        expect(seen[static_cast<size_t>(id) * 16] == round * count, "worker %d of %d missed %d", id,
               count, round);
    }
  }
  Pool none(0);
  expect(none.threads() == 1, "a pool of none still has its caller");
}

// Every phase each worker reads what its neighbour wrote in the phase before: plain memory,
// so that a barrier without the right memory order fails (and the thread sanitizer sees it).
void barriers() {
  for (int count : kCounts) {
    Pool pool(count);
    std::vector<int> a(static_cast<size_t>(count)), b(a.size());
    const int phases = 20;
    Budget budget;
    for (int round = 0; round < rounds(100) && !budget.spent(); round++) {
      std::atomic<int> wrong{0};
      pool.run([&](const Worker& w) {
        auto me = static_cast<size_t>(w.id), neighbour = static_cast<size_t>((w.id + 1) % w.count);
        for (int phase = 0; phase < phases; phase++) {
          a[me] = phase * 31 + int(me);
          w.barrier();
          b[me] = a[neighbour];
          w.barrier();
          if (b[me] != phase * 31 + int(neighbour)) wrong++;
        }
      });
      expect(wrong == 0, "%d stale reads with %d workers", wrong.load(), count);
    }
  }
}

// A worker that comes late, in turn each of them.
void late() {
  Pool pool(3);
  std::atomic<int> sum{0};
  Budget budget;
  for (int round = 0; round < rounds(60) && !budget.spent(); round++)
    pool.run([&](const Worker& w) {
      if (w.id == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      sum += 1;
      w.barrier();
      expect(sum == (round + 1) * 3 || w.id != 0, "a worker passed before another arrived");
      w.barrier();
    });
}

// Pauses of varied length let workers fall asleep at every point of their way.
void wakeups() {
  Pool pool(4);
  test::Random random(1);
  std::atomic<int> sum{0};
  Budget budget;
  int count = 0;
  for (; count < rounds(2000) && !budget.spent(); count++) {
    pool.run([&](const Worker&) { sum.fetch_add(1, std::memory_order_relaxed); });
    volatile int x = 0;
    for (int i = random.below(1 << random.below(15)); i > 0; i--) x = x + 1;
  }
  expect(sum == count * 4, "%d of %d calls ran", sum.load(), count * 4);
}

void lifetimes() {
  Budget budget;
  for (int round = 0; round < rounds(200) && !budget.spent(); round++) {
    Pool pool(1 + round % 5);
    if (round % 3) pool.run([](const Worker& w) { w.barrier(); });
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
  pool.run([](const Worker& w) { w.barrier(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to fall asleep
  double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  double used = cpu_seconds() - before;
  expect(used < 0.03, "%g s of processor time in 0.3 s of idleness", used);
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  test::run("shares cover a range once", shares);
  test::run("every worker runs every region", regions);
  test::run("barriers order plain memory", barriers);
  test::run("barriers wait for the late", late);
  test::run("no wake-up is lost", wakeups);
  test::run("pools come and go", lifetimes);
  test::run("an idle pool uses no processor", idle);
  return test::result();
}

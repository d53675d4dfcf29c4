// Blocks of state: content survives growing and shrinking, lies apart, and is copied whole.
// links: memory.cpp
#include "../memory.h"

#include <new>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using namespace gm;
using test::expect;

void paint(Memory& m, int group, size_t block, uint8_t value) {
  std::memset(m.table(group)[block], value, m.block_bytes(group));
}
bool painted(const Memory& m, int group, size_t block, uint8_t value) {
  const uint8_t* p = m.table(group)[block];
  for (size_t i = 0; i < m.block_bytes(group); i++)
    if (p[i] != value) return false;
  return true;
}

void grow_and_shrink() {
  Memory m({100, 8192, 3 << 20});
  for (int g = 0; g < 3; g++) {
    size_t sizes[] = {3, 1, 5, 12, 7, 7, 2, 9, 0, 4};
    size_t have = 0;
    for (size_t blocks : sizes) {
      m.resize(g, blocks);
      expect(m.blocks(g) == blocks, "blocks() of %d", int(blocks));
      for (size_t b = 0; b < blocks && b < have; b++)
        expect(painted(m, g, b, uint8_t(b + 1)), "block %d lost its content", int(b));
      for (size_t b = have; b < blocks; b++) paint(m, g, b, uint8_t(b + 1));
      have = blocks;
    }
  }
  expect(m.bytes() == 4 * (100 + 8192 + (3 << 20)), "bytes()");
}

void copies() {
  Memory m({1000});
  m.resize(0, 3);
  paint(m, 0, 0, 1);
  paint(m, 0, 1, 2);
  paint(m, 0, 2, 3);
  m.copy(0, 0, 2);
  expect(painted(m, 0, 2, 1) && painted(m, 0, 1, 2) && painted(m, 0, 0, 1), "copy");
  bool refused = false;
  try {
    m.copy(0, 0, 3);
  } catch (const std::out_of_range&) {
    refused = true;
  }
  expect(refused, "a copy beyond the end passes");
}

void too_much() {
  Memory m({size_t(1) << 40});
  for (size_t blocks : {size_t(1) << 20, SIZE_MAX / 2}) {
    bool refused = false;
    try {
      m.resize(0, blocks);
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    expect(refused && m.blocks(0) == 0, "an absurd size passes");
  }
}

void pages() {
  Pages none, a(10000), b(3 << 20);
  expect(none.data() == nullptr && a.size() == 10000 && b.data(), "Pages");
  for (size_t i = 0; i < a.size(); i++) expect(a.data()[i] == 0, "fresh memory is not zero");
  uint8_t* p = b.data();
  a = std::move(b);
  expect(a.data() == p && a.size() == size_t(3 << 20), "a move keeps the mapping");
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  test::run("pages", pages);
  test::run("grow and shrink", grow_and_shrink);
  test::run("copy", copies);
  test::run("too much", too_much);
  return test::result();
}

#include "panel.h"

#include <cstring>

namespace gm::inline GM_ISA {
namespace {

void write_f32(uint8_t* p, int mr, int m, const float* x, int k) {
  for (int i = 0; i < k; i++) std::memcpy(p + (size_t(i) * mr + m) * 4, x + i, 4);
  if (k & 1) std::memset(p + (size_t(k) * mr + m) * 4, 0, 4);
}

void write_bf16(uint8_t* p, int mr, int m, const float* x, int k) {
  for (int i = 0; i < k; i += 2) {
    uint32_t pair = float_to_bf16(x[i]);
    if (i + 1 < k) pair |= uint32_t(float_to_bf16(x[i + 1])) << 16;
    std::memcpy(p + (size_t(i / 2) * mr + m) * 4, &pair, 4);
  }
}

constexpr int kVectors = 32 / kLanes;

// 32 values: scale = max |x| / 127, q = x / scale rounded to even.
void write_q8_block(uint8_t* p, int mr, int m, const float* x) {
  isa::F v[kVectors], top = isa::zero();
  for (int i = 0; i < kVectors; i++) {
    v[i] = isa::load(x + i * kLanes);
    top = isa::max(top, isa::abs(v[i]));
  }
  float largest = isa::max_of(top);
  float scale = largest / 127.0f;
  // A block so small that its inverse overflows counts as zero.
  float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f;
  alignas(64) int8_t q[32];
  isa::I32 half[2] = {isa::zero_i32(), isa::zero_i32()};
  for (int i = 0; i < kVectors; i++) {
    isa::I32 n = isa::to_i32(isa::mul(v[i], isa::set1(inverse)));
    isa::store_low8(q + i * kLanes, n);
    half[i * kLanes / 16] = isa::add_i32(half[i * kLanes / 16], n);
  }
  const int sum[2] = {isa::sum_i32(half[0]), isa::sum_i32(half[1])};
  for (int j = 0; j < 8; j++) std::memcpy(p + (j * mr + m) * 4, q + 4 * j, 4);
  float f[4] = {scale, scale * float(sum[0] + sum[1]), scale * float(sum[0]),
                scale * float(sum[1])};
  int32_t n[3] = {-128 * (sum[0] + sum[1]), -128 * sum[0], -128 * sum[1]};
  uint8_t* words = p + 8 * mr * 4 + m * 4;
  for (int i = 0; i < 4; i++) std::memcpy(words + (kScale + i) * mr * 4, f + i, 4);
  for (int i = 0; i < 3; i++) std::memcpy(words + (kStart32 + i) * mr * 4, n + i, 4);
}

}  // namespace

void write_panel_row(Act act, const RowBlocks& blocks, int row, const float* x, int k,
                     uint8_t* panel) {
  int b = blocks.of_row(row), start = blocks.start(b), mr = blocks.size(b), m = row - start;
  uint8_t* p = panel + size_t(start) * panel_row_bytes(act, k);
  switch (act) {
    case Act::f32:
      return write_f32(p, mr, m, x, k);
    case Act::bf16:
      return write_bf16(p, mr, m, x, k);
    case Act::q8:
      for (int i = 0; i < k / 32; i++)
        write_q8_block(p + size_t(i) * kPanelWords * mr * 4, mr, m, x + 32 * i);
  }
}

void copy_panel_row(Act act, const RowBlocks& blocks, int row, const uint8_t* single, int k,
                    uint8_t* panel) {
  const int b = blocks.of_row(row), start = blocks.start(b);
  const size_t bytes = panel_row_bytes(act, k), mr = size_t(blocks.size(b));
  uint8_t* p = panel + size_t(start) * bytes + size_t(row - start) * 4;
  for (size_t word = 0; word < bytes / 4; word++)
    std::memcpy(p + word * mr * 4, single + word * 4, 4);
}

}  // namespace gm::inline GM_ISA

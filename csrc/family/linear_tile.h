// The micro-kernels: a tile of kLanes weight rows times MR rows of activations.
#pragma once
#include <array>
#include <utility>

#include "linear.h"

namespace gm::inline GM_ISA {

// fn.operator()<0>() … fn.operator()<N-1>(), unrolled.
template <int N, class Fn>
[[gnu::always_inline]] inline void unroll(Fn&& fn) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (fn.template operator()<I>(), ...);
  }(std::make_integer_sequence<int, N>{});
}

// While a tile is summed, the same bytes of the next one (`ahead` bytes further) are fetched
// into the second-level cache. The processor's own prefetchers stop at page ends and start anew
// in each; with them alone, or 4 KiB ahead into the first level, sums are a quarter slower.
template <int Bytes>
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) {
  unroll<(Bytes + 63) / 64>(
      [&]<int I>() __attribute__((always_inline)) { __builtin_prefetch(p + 64 * I, 0, 2); });
}

constexpr int log2_of(int x) { return x <= 1 ? 0 : 1 + log2_of(x / 2); }

// ia[m] += codes of groups First … First + N - 1 times the activations of row m.
template <class V, int MR, int First, int N>
[[gnu::always_inline]] inline void block_dot(isa::I32 (&ia)[MR], const uint8_t* values,
                                             const uint8_t* panel) {
  isa::dots<V::kWide, MR, N>(
      ia, panel + First * MR * 4,
      [&]<int I>() __attribute__((always_inline)) { return V::template vec<First + I>(values); });
}

template <class C, int MR>
struct QuantisedTile {
  using V = typename C::Values;
  using S = typename C::Scales;
  static constexpr int kSubs = 32 / S::kSub;

  // One sub-block of kSub weights: integer sum, then one multiply-add per row.
  template <int Sub>
  [[gnu::always_inline]] static void sub_block(isa::F (&acc)[MR], const typename S::Head& head,
                                               const uint8_t* values, const uint8_t* scales,
                                               const uint8_t* panel) {
    constexpr int kGroups = S::kSub / 4;
    const uint8_t* words = panel + 8 * MR * 4;
    constexpr int kStart = kSubs == 1 ? kStart32 : kStart16 + Sub;
    isa::I32 ia[MR];
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      if constexpr (V::kOffset == 0)
        ia[M] = isa::zero_i32();
      else if constexpr (V::kOffset == 128)
        ia[M] = isa::load1_i32(words + (kStart * MR + M) * 4);
      else
        ia[M] = isa::template sar<7 - log2_of(V::kOffset)>(
            isa::load1_i32(words + (kStart * MR + M) * 4));
    });
    block_dot<V, MR, Sub * kGroups, kGroups>(ia, values, panel);
    isa::F scale = S::template scale<Sub>(head, scales);
    const float* f = reinterpret_cast<const float*>(words);
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      acc[M] = isa::fma(isa::mul(isa::to_f(ia[M]), scale), isa::set1(f[kScale * MR + M]), acc[M]);
    });
    if constexpr (S::kLow) {
      constexpr int kSum = kSubs == 1 ? kSum32 : kSum16 + Sub;
      isa::F low = S::template low<Sub>(head, scales);
      unroll<MR>([&]<int M>() __attribute__((always_inline)) {
        acc[M] = isa::fma(low, isa::set1(f[kSum * MR + M]), acc[M]);
      });
    }
  }

  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, int k, ptrdiff_t ahead) {
    const uint8_t* values = tile;
    const uint8_t* scales = tile + C::values_bytes(k);
    for (int unit = 0; unit < k / C::kGranule; unit++) {
      typename S::Head head(scales);
      scales += S::kHead;
      for (int b = 0; b < S::kUnit; b++) {
        prefetch<V::kBytes>(values + ahead);
        unroll<kSubs>([&]<int Sub>() __attribute__((always_inline)) {
          sub_block<Sub>(acc, head, values, scales, panel);
        });
        values += V::kBytes;
        scales += S::kBlock;
        panel += kPanelWords * MR * 4;
      }
    }
  }
};

// Codes in groups: the scales are read once a group.
template <class C, int MR>
struct GroupedTile {
  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, const Segment& s, ptrdiff_t ahead) {
    using V = typename C::Values;
    const uint8_t* values = tile;
    const uint8_t* scales = tile + C::values_bytes(s.k);
    for (int left = s.k / 32; left > 0; left -= s.grouping.blocks) {
      typename C::Scales::Head head(s.grouping, scales);
      scales += s.grouping.bytes();
      const int blocks = left < s.grouping.blocks ? left : s.grouping.blocks;
      for (int b = 0; b < blocks; b++) {
        prefetch<V::kBytes>(values + ahead);
        QuantisedTile<C, MR>::template sub_block<0>(acc, head, values, scales, panel);
        values += V::kBytes;
        panel += kPanelWords * MR * 4;
      }
    }
  }
};

// NVFP4: scales of half blocks, and a factor for all.
template <int MR>
struct Nvfp4Tile {
  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, const Segment& s, ptrdiff_t ahead) {
    using C = Nvfp4Codec;
    const uint8_t* values = tile;
    const uint8_t* scales = tile + C::values_bytes(s.k);
    const typename C::Scales::Head head(s.grouping);
    for (int b = 0; b < s.k / 32; b++) {
      prefetch<C::Values::kBytes>(values + ahead);
      QuantisedTile<C, MR>::template sub_block<0>(acc, head, values, scales, panel);
      QuantisedTile<C, MR>::template sub_block<1>(acc, head, values, scales, panel);
      values += C::Values::kBytes;
      scales += 2 * kLanes;
      panel += kPanelWords * MR * 4;
    }
  }
};

// Codes that name one of 16 floats: sums of the upper parts, times 128, then of the lower ones.
template <int MR>
struct BookTile {
  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, const Segment& s, ptrdiff_t ahead) {
    const Codebook& book = *s.grouping.book;
    const isa::I8 high = isa::load_table(book.high), low = isa::load_table(book.low);
    const uint8_t* values = tile;
    const uint8_t* scales = tile + BookCodec::values_bytes(s.k);
    for (int left = s.k / 32; left > 0; left -= s.grouping.blocks) {
      const isa::F scale = isa::mul(s.grouping.load(scales), isa::set1(book.unit));
      scales += s.grouping.bytes();
      const int blocks = left < s.grouping.blocks ? left : s.grouping.blocks;
      for (int b = 0; b < blocks; b++) {
        prefetch<BookCodec::Values::kBytes>(values + ahead);
        block(acc, high, low, scale, values, panel);
        values += BookCodec::Values::kBytes;
        panel += kPanelWords * MR * 4;
      }
    }
  }

  [[gnu::always_inline]] static void block(isa::F (&acc)[MR], isa::I8 high, isa::I8 low,
                                           isa::F scale, const uint8_t* values,
                                           const uint8_t* panel) {
    const uint8_t* words = panel + 8 * MR * 4;
    isa::I32 ia[MR];
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      if constexpr (isa::kWideBias == 0)
        ia[M] = isa::zero_i32();
      else
        ia[M] = isa::load1_i32(words + (kStart32 * MR + M) * 4);
    });
    isa::dots<true, MR, 8>(ia, panel, [&]<int I>() __attribute__((always_inline)) {
      return isa::lookup(high, nibbles<I>(values));
    });
    unroll<MR>([&]<int M>()
                   __attribute__((always_inline)) { ia[M] = isa::template shl<7>(ia[M]); });
    isa::dots<false, MR, 8>(ia, panel, [&]<int I>() __attribute__((always_inline)) {
      return isa::lookup(low, nibbles<I>(values));
    });
    const float* f = reinterpret_cast<const float*>(words);
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      acc[M] = isa::fma(isa::mul(isa::to_f(ia[M]), scale), isa::set1(f[kScale * MR + M]), acc[M]);
    });
  }
};

// Floats of 8 bits in groups: sums of a group as floats, then one multiply-add with its scale.
template <class C, int MR>
struct SmallFloatTile {
  using V = typename C::Values;

  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, const Segment& s, ptrdiff_t ahead) {
    const uint8_t* values = tile;
    const uint8_t* scales = tile + C::values_bytes(s.k);
    for (int left = s.k / 32; left > 0; left -= s.grouping.blocks) {
      const int blocks = left < s.grouping.blocks ? left : s.grouping.blocks;
      isa::F part[MR];
      unroll<MR>([&]<int M>() { part[M] = isa::zero(); });
      group(part, values, panel, blocks, ahead);
      const isa::F scale = isa::mul(s.grouping.load(scales), isa::set1(V::kUnit));
      unroll<MR>([&]<int M>() { acc[M] = isa::fma(part[M], scale, acc[M]); });
      values += blocks * V::kBytes;
      scales += s.grouping.bytes();
      panel += size_t(blocks) * (C::kAct == Act::f32 ? 32 : 16) * MR * 4;
    }
  }

  // bfloat16: a chain of sums a row, for which there are registers at any MR.
  [[gnu::always_inline]] static void group(isa::F (&part)[MR], const uint8_t* values,
                                           const uint8_t* panel, int blocks, ptrdiff_t ahead)
    requires(C::kAct == Act::bf16)
  {
    for (int b = 0; b < blocks; b++) {
      prefetch<V::kBytes>(values + ahead);
      unroll<8>([&]<int J>() __attribute__((always_inline)) {
        const isa::I8 first = V::template pairs<J, false>(values);
        const isa::I8 second = V::template pairs<J, true>(values);
        unroll<MR>([&]<int M>() __attribute__((always_inline)) {
          part[M] = isa::dot_bf16(part[M], first, panel + (2 * J * MR + M) * 4);
        });
        unroll<MR>([&]<int M>() __attribute__((always_inline)) {
          part[M] = isa::dot_bf16(part[M], second, panel + ((2 * J + 1) * MR + M) * 4);
        });
      });
      values += V::kBytes;
      panel += 16 * MR * 4;
    }
  }

  // float32: even and odd k are summed apart.
  [[gnu::always_inline]] static void group(isa::F (&part)[MR], const uint8_t* values,
                                           const uint8_t* panel, int blocks, ptrdiff_t ahead)
    requires(C::kAct == Act::f32)
  {
    isa::F odd[MR];
    unroll<MR>([&]<int M>() { odd[M] = isa::zero(); });
    const float* a = reinterpret_cast<const float*>(panel);
    for (int b = 0; b < blocks; b++) {
      prefetch<V::kBytes>(values + ahead);
      unroll<8>([&]<int J>() __attribute__((always_inline)) {
        pair(part, odd, V::template halves<J, false>(values), a + 4 * J * MR);
        pair(part, odd, V::template halves<J, true>(values), a + (4 * J + 2) * MR);
      });
      values += V::kBytes;
      a += 32 * MR;
    }
    unroll<MR>([&]<int M>() { part[M] = isa::add(part[M], odd[M]); });
  }

  [[gnu::always_inline]] static void pair(isa::F (&even)[MR], isa::F (&odd)[MR], isa::I8 w,
                                          const float* a) {
    const isa::F w0 = isa::even_f16(w), w1 = isa::odd_f16(w);
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      even[M] = isa::fma(w0, isa::set1(a[M]), even[M]);
    });
    unroll<MR>([&]<int M>() __attribute__((always_inline)) {
      odd[M] = isa::fma(w1, isa::set1(a[MR + M]), odd[M]);
    });
  }
};

// Even and odd k are summed apart, so that two chains of multiply-adds run at once.
template <class C, int MR>
struct FloatTile {
  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, int k, ptrdiff_t ahead) {
    isa::F odd[MR];
    unroll<MR>([&]<int M>() { odd[M] = isa::zero(); });
    const float* a = reinterpret_cast<const float*>(panel);
    for (int i = 0; i < k; i += 2) {
      isa::F w0, w1;
      prefetch<2 * kLanes * C::kBytesPerK>(tile + ahead);
      load2(tile, w0, w1);
      unroll<MR>([&]<int M>() __attribute__((always_inline)) {
        acc[M] = isa::fma(w0, isa::set1(a[M]), acc[M]);
      });
      unroll<MR>([&]<int M>() __attribute__((always_inline)) {
        odd[M] = isa::fma(w1, isa::set1(a[MR + M]), odd[M]);
      });
      a += 2 * MR;
      tile += 2 * kLanes * C::kBytesPerK;
    }
    unroll<MR>([&]<int M>() { acc[M] = isa::add(acc[M], odd[M]); });
  }

  [[gnu::always_inline]] static void load2(const uint8_t* p, isa::F& w0, isa::F& w1) {
    if constexpr (std::is_same_v<C, F32Codec>) {
      w0 = isa::load(reinterpret_cast<const float*>(p));
      w1 = isa::load(reinterpret_cast<const float*>(p) + kLanes);
    } else if constexpr (std::is_same_v<C, F16Codec>) {
      w0 = isa::load_f16(reinterpret_cast<const uint16_t*>(p));
      w1 = isa::load_f16(reinterpret_cast<const uint16_t*>(p) + kLanes);
    } else {
      isa::I8 w = isa::load_i8(p);
      w0 = isa::even_bf16(w);
      w1 = isa::odd_bf16(w);
    }
  }
};

template <int MR>
struct Bf16DotTile {
  [[gnu::always_inline]] static void sum(isa::F (&acc)[MR], const uint8_t* tile,
                                         const uint8_t* panel, int k, ptrdiff_t ahead) {
    isa::F odd[MR];
    unroll<MR>([&]<int M>() { odd[M] = isa::zero(); });
    int pairs = (k + 1) / 2, i = 0;
    for (; i + 2 <= pairs; i += 2) {
      prefetch<2 * kVec>(tile + ahead);
      isa::I8 w0 = isa::load_i8(tile), w1 = isa::load_i8(tile + kVec);
      unroll<MR>([&]<int M>() __attribute__((always_inline)) {
        acc[M] = isa::dot_bf16(acc[M], w0, panel + M * 4);
      });
      unroll<MR>([&]<int M>() __attribute__((always_inline)) {
        odd[M] = isa::dot_bf16(odd[M], w1, panel + (MR + M) * 4);
      });
      tile += 2 * kVec;
      panel += 2 * MR * 4;
    }
    if (i < pairs) {
      isa::I8 w0 = isa::load_i8(tile);
      unroll<MR>([&]<int M>() { acc[M] = isa::dot_bf16(acc[M], w0, panel + M * 4); });
    }
    unroll<MR>([&]<int M>() { acc[M] = isa::add(acc[M], odd[M]); });
  }
};

template <class C, int MR>
void run_tiles(const TileCall& call) {
  const Segment& s = *call.segment;
  for (int t = call.tile0; t < call.tile1; t++) {
    const uint8_t* tile = s.data + size_t(t) * s.tile_bytes;
    const ptrdiff_t ahead = t + 1 < call.last ? ptrdiff_t(s.tile_bytes) : 0;
    isa::F acc[MR];
    unroll<MR>([&]<int M>() { acc[M] = isa::zero(); });
    if constexpr (std::is_same_v<C, Nvfp4Codec>)
      Nvfp4Tile<MR>::sum(acc, tile, call.panel, s, ahead);
    else if constexpr (std::is_same_v<C, BookCodec>)
      BookTile<MR>::sum(acc, tile, call.panel, s, ahead);
    else if constexpr (kIsFloats<C>)
      SmallFloatTile<C, MR>::sum(acc, tile, call.panel, s, ahead);
    else if constexpr (kIsGrouped<C>)
      GroupedTile<C, MR>::sum(acc, tile, call.panel, s, ahead);
    else if constexpr (kIsQuantised<C>)
      QuantisedTile<C, MR>::sum(acc, tile, call.panel, s.k, ahead);
    else if constexpr (C::kAct == Act::bf16)
      Bf16DotTile<MR>::sum(acc, tile, call.panel, s.k, ahead);
    else
      FloatTile<C, MR>::sum(acc, tile, call.panel, s.k, ahead);
    int n = s.rows - t * kLanes, col = s.out0 + t * kLanes;
    if (n > kLanes) n = kLanes;
    unroll<MR>([&]<int M>() {
      isa::F y = acc[M];
      if (call.bias) y = isa::add(y, isa::load_n(call.bias + col, n));
      if (call.residual)
        y = isa::add(y, isa::load_n(call.residual + M * call.residual_stride + col, n));
      isa::store_n(call.out + M * call.out_stride + col, y, n);
    });
  }
}

template <class C>
const TileFn* make_tile_table() {
  constexpr int kRows = C::kAct == Act::q8 ? isa::kMaxRows : isa::kMaxFloatRows;
  static constexpr auto kTable = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<TileFn, sizeof...(I)>{run_tiles<C, I + 1>...};
  }(std::make_integer_sequence<int, kRows>{});
  return kTable.data();
}

}  // namespace gm::inline GM_ISA

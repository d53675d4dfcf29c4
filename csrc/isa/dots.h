// Dot products of a run of weight vectors with several rows of activations: the inner loop of
// quantised matrix multiplication.
//
//   acc[m][r] += Σ over 4·N values of w[r] · a[m]
//
// vec<I>() gives the I-th vector of weights (kLanes rows of 4 bytes) in the form of isa::dot,
// or of isa::dot_wide if Wide. `panel` holds, for each I, one word of 4 int8 per row m. The
// sums are exact integers, so any order gives the same bits.
#pragma once
#include <utility>

namespace gm::inline GM_ISA::isa {

template <int N, class Fn>
[[gnu::always_inline]] inline void each_index(Fn&& fn) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (fn.template operator()<I>(), ...);
  }(std::make_integer_sequence<int, N>{});
}

#if defined(GM_I8MM) || defined(GM_DOTPROD)

inline int8x16_t load_rows4(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
inline int8x16_t load_rows2(const uint8_t* p) {
  return vreinterpretq_s8_u8(vcombine_u8(vld1_u8(p), vdup_n_u8(0)));
}

// One vector of weights with MR rows from First on: one load brings the words of four rows.
template <int First, int MR>
[[gnu::always_inline]] inline void dot_rows(I32 (&acc)[MR], I8 w, const uint8_t* words) {
  constexpr int kFours = (MR - First) / 4, kRest = (MR - First) % 4;
  each_index<kFours>([&]<int Q>() __attribute__((always_inline)) {
    constexpr int M = First + 4 * Q;
    int8x16_t a = load_rows4(words + M * 4);
    acc[M] = vdotq_laneq_s32(acc[M], w, a, 0);
    acc[M + 1] = vdotq_laneq_s32(acc[M + 1], w, a, 1);
    acc[M + 2] = vdotq_laneq_s32(acc[M + 2], w, a, 2);
    acc[M + 3] = vdotq_laneq_s32(acc[M + 3], w, a, 3);
  });
  each_index<kRest>([&]<int R>() __attribute__((always_inline)) {
    constexpr int M = First + 4 * kFours + R;
    acc[M] = dot(acc[M], w, words + M * 4);
  });
}

#endif

#if defined(GM_I8MM)

// SMMLA multiplies 2 × 8 by 8 × 2 bytes. Zipping the words of two neighbouring vectors puts 8
// values of a row together, for weights and activations alike; the 2 × 2 results are parted
// at the end. A last odd row takes SDOT.
template <bool Wide, int MR, int N, class Vec>
[[gnu::always_inline]] inline void dots(I32 (&acc)[MR], const uint8_t* panel, Vec vec) {
  static_assert(N % 2 == 0);
  constexpr int kPairs = MR / 2;
  I32 top[kPairs + 1], bottom[kPairs + 1];  // weight rows 0, 1 and 2, 3 by activation rows
  each_index<kPairs>([&]<int P>()
                         __attribute__((always_inline)) { top[P] = bottom[P] = zero_i32(); });
  auto zip = [](int8x16_t a, int8x16_t b, auto high) __attribute__((always_inline)) {
    int32x4_t x = vreinterpretq_s32_s8(a), y = vreinterpretq_s32_s8(b);
    return vreinterpretq_s8_s32(decltype(high)::value ? vzip2q_s32(x, y) : vzip1q_s32(x, y));
  };
  std::false_type low;
  std::true_type high;
  each_index<N / 2>([&]<int J>() __attribute__((always_inline)) {
    I8 v0 = vec.template operator()<2 * J>(), v1 = vec.template operator()<2 * J + 1>();
    const uint8_t *a0 = panel + 2 * J * MR * 4, *a1 = a0 + MR * 4;
    if constexpr (kPairs > 0) {
      int8x16_t w01 = zip(v0, v1, low), w23 = zip(v0, v1, high);
      auto multiply = [&]<int P>(int8x16_t a) __attribute__((always_inline)) {
        top[P] = vmmlaq_s32(top[P], w01, a);
        bottom[P] = vmmlaq_s32(bottom[P], w23, a);
      };
      each_index<kPairs / 2>([&]<int Q>() __attribute__((always_inline)) {
        int8x16_t x = load_rows4(a0 + Q * 16), y = load_rows4(a1 + Q * 16);
        multiply.template operator()<2 * Q>(zip(x, y, low));
        multiply.template operator()<2 * Q + 1>(zip(x, y, high));
      });
      if constexpr (kPairs % 2) {
        constexpr int P = kPairs - 1;
        multiply.template operator()<P>(zip(load_rows2(a0 + P * 8), load_rows2(a1 + P * 8), low));
      }
    }
    if constexpr (MR % 2) {
      dot_rows<MR - 1>(acc, v0, a0);
      dot_rows<MR - 1>(acc, v1, a1);
    }
  });
  each_index<kPairs>([&]<int P>() __attribute__((always_inline)) {
    acc[2 * P] = vaddq_s32(acc[2 * P], vuzp1q_s32(top[P], bottom[P]));
    acc[2 * P + 1] = vaddq_s32(acc[2 * P + 1], vuzp2q_s32(top[P], bottom[P]));
  });
}

#elif defined(GM_DOTPROD)

template <bool Wide, int MR, int N, class Vec>
[[gnu::always_inline]] inline void dots(I32 (&acc)[MR], const uint8_t* panel, Vec vec) {
  each_index<N>([&]<int I>() __attribute__((always_inline)) {
    dot_rows<0>(acc, vec.template operator()<I>(), panel + I * MR * 4);
  });
}

#else

template <bool Wide, int MR, int N, class Vec>
[[gnu::always_inline]] inline void dots(I32 (&acc)[MR], const uint8_t* panel, Vec vec) {
  each_index<N>([&]<int I>() __attribute__((always_inline)) {
    I8 w = vec.template operator()<I>();
    each_index<MR>([&]<int M>() __attribute__((always_inline)) {
      const uint8_t* a = panel + (I * MR + M) * 4;
      acc[M] = Wide ? dot_wide(acc[M], w, a) : dot(acc[M], w, a);
    });
  });
}

#endif

}  // namespace gm::inline GM_ISA::isa

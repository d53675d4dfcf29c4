// A mixture of experts: which experts a row chooses, and the rows of each expert brought together.
#pragma once
#include <cstddef>
#include <cstdint>

#include "panel.h"
#include "rows.h"

namespace gm::inline GM_ISA {

// As ops.Routing has it.
struct Routing {
  int experts = 0, used = 0;
  bool sigmoid = false, normalised = true;
  float scale = 1.0f;
  int groups = 1, groups_used = 1, group_best = 1;
  bool weighs_input = false;
};

enum class Gate : int { silu = 0, gelu_tanh = 1, gelu = 2, clamped = 3 };

// The experts of one row, best first, and what they weigh. selection and result_scale may be null.
// Whatever the logits are, NaN too, the choice is of different experts that there are.
void route_row(const Routing& routing, const float* logits, const float* selection,
               const float* result_scale, int32_t* chosen, float* weights);

// The choices [rows · used] sorted by expert: a *place* for each.
struct Places {
  int32_t* chosen;  // [rows · used] experts
  float* weights;   // [rows · used]
  int32_t* place;   // [rows · used] where a choice went
  int32_t* choice;  // [rows · used] which choice is in a place
  int32_t* expert;  // [rows · used] of a place
  int32_t* start;   // [experts + 1] first place of an expert
  int32_t* active;  // [experts] those that were chosen
  int32_t* count;   // of those
};
void sort_places(const Routing& routing, int rows, const Places& p);

// act(gate) · up; "clamped" as ops.Gate says.
void gate_row(Gate gate, float limit, const float* x, int half, float* out);

// out = Σ weights[i] · rows[places[i]], in that order. weights null: ones.
void weighted_sum(const float* rows, ptrdiff_t stride, const int32_t* places, const float* weights,
                  int count, int n, float* out);

}  // namespace gm::inline GM_ISA

// y = x · Wᵀ on packed tiles: one kernel for every codec and every number of rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../codec/codec.h"
#include "panel.h"

namespace gm::inline GM_ISA {

// Consecutive rows of a matrix in one codec. Tiles of kLanes rows, the last one padded with
// zeros; `out0` is the output column of its first row.
struct Segment {
  CodecId codec;
  int rows;
  int k;
  int out0;
  size_t tile_bytes;
  uint8_t* data;
  Grouping grouping = {};  // of codes in groups
  int tiles() const { return (rows + kLanes - 1) / kLanes; }
  Act act() const;
};

struct LinearArgs {
  const std::vector<Segment>* segments;
  const uint8_t* panels[3];  // by Act, the formats that the segments need
  int rows;                  // of activations
  float* out;                // [rows, N]
  ptrdiff_t out_stride;      // floats
  const float* bias;         // [N] or null
  const float* residual;     // [rows, N] or null: added to the result
  ptrdiff_t residual_stride;
};

// A unit of work is a tile, of all segments together.
int linear_units(const std::vector<Segment>& segments);
// Does tiles [begin, end). The terms of an output are added in one order, whatever the rows,
// tiles and workers.
void linear(const LinearArgs& args, int begin, int end);

// Decodes row `row` of a segment into k floats (for embeddings).
void decode_row(const Segment& segment, int row, float* out);

// One micro-kernel call: tiles [tile0, tile1) of a segment times one row block.
struct TileCall {
  const Segment* segment;
  int tile0, tile1;
  int last;  // where this worker's run of tiles ends: what is fetched ahead ends there too
  const uint8_t* panel;  // of the row block
  float* out;            // first row of the block
  ptrdiff_t out_stride;
  const float* bias;
  const float* residual;
  ptrdiff_t residual_stride;
};
using TileFn = void (*)(const TileCall&);
// The micro-kernels of a codec, by number of rows (index 0 is one row).
template <class C>
const TileFn* tile_table();

}  // namespace gm::inline GM_ISA

// File layout → packed tiles, once, at load.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../family/linear.h"

namespace gm::inline GM_ISA {

// Bytes of one row of k weights in the file encoding that packs into this codec.
size_t source_row_bytes(CodecId codec, int k);
// K must be a multiple of it.
int granule(CodecId codec);
size_t packed_tile_bytes(CodecId codec, int k);
// Packs tiles [begin, end) of the segment from `source` (all its rows, of source_row_bytes).
void pack(const Segment& segment, const uint8_t* source, int begin, int end);

// One row as it lies in the file, to floats.
void decode_source(CodecId codec, int k, const uint8_t* source, float* out);

}  // namespace gm::inline GM_ISA

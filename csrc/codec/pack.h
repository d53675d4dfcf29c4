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
size_t packed_tile_bytes(CodecId codec, int k, const Grouping& grouping = {});
// Packs tiles [begin, end) of the segment from `source` (all its rows, of source_row_bytes).
void pack(const Segment& segment, const uint8_t* source, int begin, int end);

// One row as it lies in the file, to floats.
void decode_source(CodecId codec, int k, const uint8_t* source, float* out);

// Rows of codes, as quant/composite.py has them.
struct CodeRows {
  int start, rows;       // of the segment; start is a multiple of kLanes
  const uint8_t* codes;  // [rows, k]
  const float* scales;   // [rows, groups], as the next two
  const uint8_t* zeros;  // or null
  const float* others;   // lows or zeros that are no bytes, or null
};
// Packs rows [begin, end) of them. False if the segment's type does not hold a number exactly.
bool pack_codes(const Segment& segment, const CodeRows& source, int begin, int end);
// The codec of grouped codes of so many bits; `count` if there is none.
CodecId grouped_codec(int bits, Beside beside, Number number = Number::whole);

}  // namespace gm::inline GM_ISA

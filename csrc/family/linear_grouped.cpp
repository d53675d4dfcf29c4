#include "linear_tile.h"

namespace gm::inline GM_ISA {

#define X(type, name)                \
  template <>                        \
  const TileFn* tile_table<type>() { \
    return make_tile_table<type>();  \
  }
GM_GROUPED_CODECS(X)
#undef X

}  // namespace gm::inline GM_ISA

// Which levels this processor and its operating system run.
#pragma once
#include <string>
#include <vector>

namespace gm {

// Names as in isa.h, best first; the last is always "scalar". Compiled without any level's
// flags: it must run everywhere.
std::vector<std::string> runnable_levels();

}  // namespace gm

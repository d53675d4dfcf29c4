// Prints the levels this processor runs, one a line, best first.
#include "../isa/detect.h"

#include <cstdio>

int main() {
  for (const auto& name : gm::runnable_levels()) std::printf("%s\n", name.c_str());
}

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa/detect.h"

NB_MODULE(_detect, m) { m.def("levels", &gm::runnable_levels); }

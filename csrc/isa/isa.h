// The level this translation unit is compiled for: one of GM_SCALAR, GM_AVX2, GM_AVX512,
// GM_NEON, GM_DOTPROD, GM_I8MM is defined by the build. Every level offers the same
// primitives in gm::isa; nothing above this folder names a processor.
//
// Everything compiled lives in an inline namespace of the level's name, so that several
// levels can be loaded into one process.
#pragma once

#if defined(GM_AVX512)
#include "avx512.h"
#elif defined(GM_AVX2)
#include "avx2.h"
#elif defined(GM_NEON) || defined(GM_DOTPROD) || defined(GM_I8MM)
#include "neon.h"
#else
#include "scalar.h"
#endif

#include "dots.h"
#include "half.h"
#include "math.h"

// The instruction sets that Highway compiles the CPU kernels for. Include this before any hwy/
// header in every file that sets HWY_TARGET_INCLUDE.
#pragma once

// Kept: AVX-512 (HWY_AVX3), AVX2 and NEON, and the baseline that every machine runs (HWY_SCALAR
// with g++ 12 on x86-64: one lane, without the operations that cross lanes of a block). The others
// cost compile time: some gain nothing over these in float32, and processors with SSE4 alone are
// too slow to serve a model. A sanitizer checks the same source for every target, so sanitized
// builds compile only two of them.
#ifdef OVQ_SANITIZED
#define OVQ_UNSANITIZED_TARGETS HWY_AVX3
#else
#define OVQ_UNSANITIZED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   OVQ_UNSANITIZED_TARGETS)

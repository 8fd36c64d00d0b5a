// The warp's matrix instructions and conversions, emulated for ptx.cuh.
#pragma once

#include <cstdint>

#include "tests/simt/block.h"

namespace ovq::simt {

// ldmatrix.x4, with transposed also .trans. The reader of every row is the warp, not the one lane
// that names it.
void LoadMatrices(uint32_t (&r)[4], int64_t offset, bool transposed, Where where,
                  const void* address);

// mma.m16n8k16: each element of d and its 16 products are summed in double, in the order of k, and
// rounded once to float. The hardware's order and its rounding on the way are fixed, but nowhere
// specified.
void MmaBF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where);

float Exp2FlushingSubnormals(float x);
uint32_t PackBF16(float low, float high);

}  // namespace ovq::simt

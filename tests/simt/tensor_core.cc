#include "tests/simt/tensor_core.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ovq::simt {
namespace {

constexpr uint32_t kAllLanes = 0xffffffff;

float FromBF16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
float Low(uint32_t pair) { return FromBF16(pair & 0xffff); }
float High(uint32_t pair) { return FromBF16(pair >> 16); }

uint32_t ToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

struct MatrixRow {
  uint16_t values[8];
  uint32_t* r;
};

void WriteMatrices(const void* const* arguments, uint32_t, bool transposed) {
  const auto row = [&](int lane) { return static_cast<const MatrixRow*>(arguments[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const MatrixRow* rows[2] = {row(8 * m + (transposed ? 2 * t : g)),
                                  row(8 * m + (transposed ? 2 * t + 1 : g))};
      const uint32_t low = rows[0]->values[transposed ? g : 2 * t];
      const uint32_t high = rows[1]->values[transposed ? g : 2 * t + 1];
      row(lane)->r[m] = high << 16 | low;
    }
  }
}

struct MmaLane {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

void Multiply(const void* const* arguments, uint32_t) {
  double a[16][16], b[16][8], d[16][8];
  const auto at = [&](int lane) { return static_cast<const MmaLane*>(arguments[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& from = *at(lane);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i % 2), column = 2 * t + 8 * (i / 2);
      a[row][column] = Low(from.a[i]);
      a[row][column + 1] = High(from.a[i]);
      d[g + 8 * (i / 2)][2 * t + i % 2] = from.d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + 8 * i][g] = Low(from.b[i]);
      b[2 * t + 8 * i + 1][g] = High(from.b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      at(lane)->d[i] = static_cast<float>(d[g + 8 * (i / 2)][2 * t + i % 2]);
    }
  }
}

}  // namespace

void LoadMatrices(uint32_t (&r)[4], int64_t offset, bool transposed, Where where,
                  const void* address) {
  Executor& executor = Executor::Get();
  MatrixRow row;
  const void* from = executor.Shared(offset, 16, 16, address);
  executor.CheckRead(offset, 16, true, address);
  std::memcpy(row.values, from, 16);
  row.r = r;
  if (transposed) {
    executor.Meet("ldmatrix.trans", kAllLanes, where, &row,
                  [](const void* const* a, uint32_t mask) { WriteMatrices(a, mask, true); });
  } else {
    executor.Meet("ldmatrix", kAllLanes, where, &row,
                  [](const void* const* a, uint32_t mask) { WriteMatrices(a, mask, false); });
  }
}

void MmaBF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where) {
  const MmaLane lane{d, a, {b0, b1}};
  Executor::Get().Meet("mma.m16n8k16", kAllLanes, where, &lane, Multiply);
}

float Exp2FlushingSubnormals(float x) {
  const auto flush = [](float v) {
    return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
  };
  return flush(std::exp2(flush(x)));
}

uint32_t PackBF16(float low, float high) { return ToBF16(high) << 16 | ToBF16(low); }

}  // namespace ovq::simt

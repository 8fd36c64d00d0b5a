// With q an integer of a block, d and m its scale and minimum in half precision, s and t a
// sub-block's own scale and minimum, elements are
//   Qn_0: d (q - 2^(n-1))         Qn_1: d q + m               Q8_0: d q
//   Q2_K, Q4_K, Q5_K: (d s) q - (m t)                         Q3_K, Q6_K: (d s) (q - 2^(n-1))
//   IQ4_NL: d k[q]                IQ4_XS: (d s) k[q]          k: a table of 16 numbers
// each product and sum rounded to float32 in this order (ggml's dequantize_row_* functions).
#include "model/gguf/block_types.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/tensor.h"

namespace ovq::model {
namespace {

constexpr int kSuper = 256;  // elements of a block of the K and XS types

uint8_t Byte(const std::byte* at) { return static_cast<uint8_t>(*at); }

template <class T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float Half(const std::byte* at) { return kernels::HalfToFloat(Load<uint16_t>(at)); }

// Bits [shift, shift + n) of a byte.
int Bits(const std::byte* at, int shift, int n) { return Byte(at) >> shift & ((1 << n) - 1); }

void DecodeF32(const std::byte* block, float* y) { *y = Load<float>(block); }
void DecodeF16(const std::byte* block, float* y) { *y = Half(block); }
void DecodeBF16(const std::byte* block, float* y) {
  *y = kernels::ToFloat(Load<kernels::BF16>(block));
}

// Element j < 16 is the lower half of byte j, element 16 + j the upper; their fifth bits are bits j
// and 16 + j of `fifth`.
void DecodeLegacy(const std::byte* quants, uint32_t fifth, int zero, float d, float m, float* y) {
  for (int j = 0; j < 32; ++j) {
    const int low = Bits(quants + j % 16, j < 16 ? 0 : 4, 4), high = (fifth >> j & 1) << 4;
    y[j] = static_cast<float>((low | high) - zero) * d + m;
  }
}
constexpr float kNoMin = -0.0f;  // x + -0 is x, for x = -0, too

void DecodeQ4_0(const std::byte* block, float* y) {
  DecodeLegacy(block + 2, 0, 8, Half(block), kNoMin, y);
}
void DecodeQ4_1(const std::byte* block, float* y) {
  DecodeLegacy(block + 4, 0, 0, Half(block), Half(block + 2), y);
}
void DecodeQ5_0(const std::byte* block, float* y) {
  DecodeLegacy(block + 6, Load<uint32_t>(block + 2), 16, Half(block), kNoMin, y);
}
void DecodeQ5_1(const std::byte* block, float* y) {
  DecodeLegacy(block + 8, Load<uint32_t>(block + 4), 0, Half(block), Half(block + 2), y);
}
void DecodeQ8_0(const std::byte* block, float* y) {
  const float d = Half(block);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(Load<int8_t>(block + 2 + j)) * d;
}

void DecodeQ2_K(const std::byte* block, float* y) {
  const std::byte *scales = block, *quants = block + 16;
  const float d = Half(block + 80), m = Half(block + 82);
  for (int i = 0; i < kSuper; ++i) {
    const std::byte* const scale = scales + i / 16;
    const int q = Bits(quants + 32 * (i / 128) + i % 32, i % 128 / 32 * 2, 2);
    y[i] = d * static_cast<float>(Bits(scale, 0, 4)) * static_cast<float>(q) -
           m * static_cast<float>(Bits(scale, 4, 4));
  }
}

void DecodeQ3_K(const std::byte* block, float* y) {
  const std::byte *high = block, *quants = block + 32, *scales = block + 96;
  const float d = Half(block + 108);
  for (int i = 0; i < kSuper; ++i) {
    const int group = i / 16;
    const int scale = Bits(scales + group % 8, group < 8 ? 0 : 4, 4) |
                      Bits(scales + 8 + group % 4, group / 4 * 2, 2) << 4;
    const int q = Bits(quants + 32 * (i / 128) + i % 32, i % 128 / 32 * 2, 2) |
                  Bits(high + i % 32, i / 32, 1) << 2;
    y[i] = d * static_cast<float>(scale - 32) * static_cast<float>(q - 4);
  }
}

// The scale and minimum of 32 elements of Q4_K and Q5_K, six bits each.
struct ScaleAndMin {
  float scale, min;
};
ScaleAndMin SubBlock(const std::byte* scales, int j) {
  if (j < 4) {
    return {static_cast<float>(Bits(scales + j, 0, 6)),
            static_cast<float>(Bits(scales + j + 4, 0, 6))};
  }
  return {static_cast<float>(Bits(scales + j + 4, 0, 4) | Bits(scales + j - 4, 6, 2) << 4),
          static_cast<float>(Bits(scales + j + 4, 4, 4) | Bits(scales + j, 6, 2) << 4)};
}

// high: bit j of byte i is the fifth bit of element 32 j + i; null: there is none.
void DecodeWithMins(const std::byte* block, const std::byte* high, const std::byte* quants,
                    float* y) {
  const float d = Half(block), m = Half(block + 2);
  for (int j = 0; j < kSuper / 32; ++j) {
    const ScaleAndMin sub = SubBlock(block + 4, j);
    const float scale = d * sub.scale, min = m * sub.min;
    for (int i = 0; i < 32; ++i) {
      const int low = Bits(quants + 32 * (j / 2) + i, j % 2 * 4, 4),
                q = high == nullptr ? low : low | Bits(high + i, j, 1) << 4;
      y[32 * j + i] = scale * static_cast<float>(q) - min;
    }
  }
}
void DecodeQ4_K(const std::byte* block, float* y) { DecodeWithMins(block, nullptr, block + 16, y); }
void DecodeQ5_K(const std::byte* block, float* y) {
  DecodeWithMins(block, block + 16, block + 48, y);
}

void DecodeQ6_K(const std::byte* block, float* y) {
  const std::byte *lows = block, *highs = block + 128, *scales = block + 192;
  const float d = Half(block + 208);
  for (int i = 0; i < kSuper; ++i) {
    const int in_half = i % 128;
    const int q = Bits(lows + 64 * (i / 128) + in_half % 64, in_half / 64 * 4, 4) |
                  Bits(highs + 32 * (i / 128) + i % 32, in_half / 32 * 2, 2) << 4;
    y[i] = d * static_cast<float>(Load<int8_t>(scales + i / 16)) * static_cast<float>(q - 32);
  }
}

constexpr int kNonlinear[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

void DecodeNonlinear(const std::byte* quants, float d, float* y) {
  for (int j = 0; j < 32; ++j) {
    y[j] = d * static_cast<float>(kNonlinear[Bits(quants + j % 16, j < 16 ? 0 : 4, 4)]);
  }
}
void DecodeIQ4_NL(const std::byte* block, float* y) { DecodeNonlinear(block + 2, Half(block), y); }
void DecodeIQ4_XS(const std::byte* block, float* y) {
  const float d = Half(block);
  const int highs = Load<uint16_t>(block + 2);
  for (int j = 0; j < kSuper / 32; ++j) {
    const int scale = Bits(block + 4 + j / 2, j % 2 * 4, 4) | (highs >> 2 * j & 3) << 4;
    DecodeNonlinear(block + 8 + 16 * j, d * static_cast<float>(scale - 32), y + 32 * j);
  }
}

constexpr BlockType kTypes[] = {
    {0, "F32", 1, 4, DecodeF32},           {1, "F16", 1, 2, DecodeF16},
    {2, "Q4_0", 32, 18, DecodeQ4_0},       {3, "Q4_1", 32, 20, DecodeQ4_1},
    {6, "Q5_0", 32, 22, DecodeQ5_0},       {7, "Q5_1", 32, 24, DecodeQ5_1},
    {8, "Q8_0", 32, 34, DecodeQ8_0},       {10, "Q2_K", kSuper, 84, DecodeQ2_K},
    {11, "Q3_K", kSuper, 110, DecodeQ3_K}, {12, "Q4_K", kSuper, 144, DecodeQ4_K},
    {13, "Q5_K", kSuper, 176, DecodeQ5_K}, {14, "Q6_K", kSuper, 210, DecodeQ6_K},
    {20, "IQ4_NL", 32, 18, DecodeIQ4_NL},  {23, "IQ4_XS", kSuper, 136, DecodeIQ4_XS},
    {30, "BF16", 1, 2, DecodeBF16},
};

}  // namespace

std::span<const BlockType> BlockTypes() { return kTypes; }

const BlockType* FindBlockType(uint32_t id) {
  const auto found = std::ranges::find(kTypes, id, &BlockType::id);
  return found == std::end(kTypes) ? nullptr : &*found;
}

}  // namespace ovq::model

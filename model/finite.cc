#include "model/finite.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace ovq::model {
namespace {

// exponent: the exponent's bits, all set in infinities and NaNs. The loop over a block has no
// branch, so the compiler vectorizes it and it runs at memory speed.
template <class Bits>
std::optional<int64_t> First(std::span<const Bits> values, Bits exponent) {
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    Bits found = 0;
    for (const Bits bits : block) found |= static_cast<Bits>((bits & exponent) == exponent);
    if (found == 0) continue;
    const auto at = std::ranges::find_if(
        block, [exponent](Bits bits) { return (bits & exponent) == exponent; });
    return static_cast<int64_t>(begin) + (at - block.begin());
  }
  return std::nullopt;
}

template <class Bits>
std::span<const Bits> AsBits(const kernels::TensorView& tensor) {
  return {static_cast<const Bits*>(static_cast<const void*>(tensor.data)),
          static_cast<size_t>(tensor.shape.elements())};
}

}  // namespace

std::optional<int64_t> FirstNotFinite(const kernels::TensorView& tensor) {
  switch (tensor.dtype) {
    case kernels::DType::kF32:
      return First<uint32_t>(AsBits<uint32_t>(tensor), 0x7f800000);
    case kernels::DType::kBF16:
      return First<uint16_t>(AsBits<uint16_t>(tensor), 0x7f80);
    case kernels::DType::kF16:
      return First<uint16_t>(AsBits<uint16_t>(tensor), 0x7c00);
    default:
      Check(false, "numbers with an exponent");
      return std::nullopt;
  }
}

}  // namespace ovq::model

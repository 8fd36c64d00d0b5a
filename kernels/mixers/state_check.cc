#include "kernels/mixers/state_check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace {

// Elements checked at a time: a loop without an early exit is fast (it vectorises).
constexpr size_t kRun = 4096;

float Number(float x) { return x; }
float Number(BF16 x) { return ToFloat(x); }
double Number(int32_t x) { return x; }
double Number(uint32_t x) { return x; }

// Index of the first value outside the range; n if there is none.
template <class T>
size_t FirstBeyond(const T* values, size_t n, const ValidRange& range) {
  using N = decltype(Number(T{}));
  const auto least = static_cast<N>(range.least), most = static_cast<N>(range.most);
  const auto beyond = [&](T value) { return !(Number(value) >= least) | !(Number(value) <= most); };
  for (size_t begin = 0; begin < n; begin += kRun) {
    const size_t end = std::min(n, begin + kRun);
    unsigned found = 0;
    for (size_t i = begin; i < end; ++i) found |= static_cast<unsigned>(beyond(values[i]));
    if (found != 0)
      return static_cast<size_t>(std::find_if(values + begin, values + end, beyond) - values);
  }
  return n;
}

template <class T>
std::string Text(double number) {
  if constexpr (std::is_integral_v<T>) return absl::StrCat(static_cast<int64_t>(number));
  return absl::StrCat(number);
}

// A field, or the range of its elements that belongs to one part of a layer.
struct FieldPart {
  const std::byte* data;
  const StateField& field;
  size_t begin, end;  // elements
};

template <class T>
absl::Status CheckValues(const FieldPart& part, const ValidRange& range) {
  const StateField& field = part.field;
  const T* values = reinterpret_cast<const T*>(part.data);
  const size_t i = part.begin + FirstBeyond(values + part.begin, part.end - part.begin, range);
  if (i == part.end) return absl::OkStatus();
  const bool any = range.least == ValidRange().least && range.most == ValidRange().most;
  return absl::DataLossError(absl::StrCat(
      field.name, "[", i, "] is ", Text<T>(Number(values[i])), ", expected ",
      any ? "a finite number" : absl::StrCat(Text<T>(range.least), " to ", Text<T>(range.most))));
}

// Checks blocks of slots with scales, in which every byte is valid except those of the exponents.
absl::Status CheckExponents(const FieldPart& part) {
  const Shape& shape = part.field.shape;
  const auto block = static_cast<size_t>(shape[shape.rank() - 2] * shape[shape.rank() - 1]);
  for (size_t end = part.begin + block; end <= part.end; end += block) {
    for (size_t i = end - kBlockSlots; i < end; ++i) {
      const auto exponent = static_cast<uint8_t>(part.data[i]);
      if (exponent <= kMaxExponent) continue;
      return absl::DataLossError(absl::StrCat(part.field.name, "[", i, "] is the exponent ",
                                              exponent, ", expected 0 to ", kMaxExponent));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckField(const FieldPart& part, int64_t live) {
  const StateField& field = part.field;
  ValidRange range = field.valid;
  if (range.is_slot) {
    range.least = 0;
    range.most = static_cast<double>(std::max<int64_t>(live - 1, 0));
  }
  if (field.dtype == DType::kI32) return CheckValues<int32_t>(part, range);
  if (field.dtype == DType::kU32) return CheckValues<uint32_t>(part, range);
  return VisitSlots(field.dtype, [&]<class T>(Slots<T>) {
    if constexpr (Slots<T>::kScaled)
      return CheckExponents(part);
    else
      return CheckValues<T>(part, range);
  });
}

}  // namespace

absl::Status CheckLayer(const LayerBytes& layer) {
  const StateFields &fixed = layer.state.fixed, &block = layer.state.block;
  const auto n_fixed = static_cast<int>(fixed.list().size()),
             n_block = static_cast<int>(block.list().size());
  for (int f = 0; f < n_fixed; ++f) {
    // The first dimension counts heads where heads have parts of their own; a field without heads
    // (of a token shift) is divided all the same, and its elements need not be a multiple.
    const StateField& field = fixed.list()[f];
    const size_t n = static_cast<size_t>(field.shape.elements()), n_parts = layer.parts.size();
    for (size_t part = 0; part < n_parts; ++part) {
      absl::Status status = CheckField(
          {layer.Fixed<std::byte>(f), field, part * n / n_parts, (part + 1) * n / n_parts},
          layer.parts[part].live);
      if (!status.ok()) return status;
    }
  }
  int64_t most = 0;
  for (const LayerBytes::Part& part : layer.parts) most = std::max(most, part.live);
  for (int64_t b = 0; b < NumBlocks(most); ++b) {
    for (int f = 0; f < n_block; ++f) {
      const StateField& field = block.list()[f];
      const int head = layer.state.FieldHead(f);
      const int64_t live = layer.head_part(head).live;
      if (b >= NumBlocks(live)) continue;
      const absl::Status status = CheckField(
          {layer.Block<std::byte>(f, b), field, 0, static_cast<size_t>(field.shape.elements())},
          live);
      if (!status.ok()) {
        return absl::DataLossError(
            absl::StrCat("block ", b, ", head ", head, ": ", std::string(status.message())));
      }
    }
  }
  return layer.state.check ? layer.state.check(layer) : absl::OkStatus();
}

}  // namespace ovq::kernels

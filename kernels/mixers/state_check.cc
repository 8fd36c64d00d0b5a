#include "kernels/mixers/state_check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

// As many at a time as a loop without a way out is quick for.
constexpr size_t kRun = 4096;

float Number(float x) { return x; }
float Number(BF16 x) { return ToFloat(x); }
double Number(int32_t x) { return x; }
double Number(uint32_t x) { return x; }

// The first that is not in the range; n if all are.
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

// Which of a block's fields of one name this is: every head has them all.
int64_t HeadOf(const StateFields& block, int field) {
  const std::string_view name = block.list()[field].name;
  return std::count_if(block.list().begin(), block.list().begin() + field,
                       [&](const StateField& other) { return other.name == name; });
}

template <class T>
std::string Text(double number) {
  if constexpr (std::is_integral_v<T>) return absl::StrCat(static_cast<int64_t>(number));
  return absl::StrCat(number);
}

template <class T>
absl::Status CheckValues(const std::byte* data, const StateField& field, const ValidRange& range) {
  const T* values = reinterpret_cast<const T*>(data);
  const auto n = static_cast<size_t>(field.shape.elements());
  const size_t i = FirstBeyond(values, n, range);
  if (i == n) return absl::OkStatus();
  const bool any = range.least == ValidRange().least && range.most == ValidRange().most;
  return absl::DataLossError(absl::StrCat(
      field.name, "[", i, "] is ", Text<T>(Number(values[i])), ", expected ",
      any ? "a finite number" : absl::StrCat(Text<T>(range.least), " to ", Text<T>(range.most))));
}

absl::Status CheckField(const std::byte* data, const StateField& field, int64_t live) {
  ValidRange range = field.valid;
  if (range.is_slot) {
    range.least = 0;
    range.most = static_cast<double>(std::max<int64_t>(live - 1, 0));
  }
  switch (field.dtype) {
    case DType::kF32:
      return CheckValues<float>(data, field, range);
    case DType::kBF16:
      return CheckValues<BF16>(data, field, range);
    case DType::kI32:
      return CheckValues<int32_t>(data, field, range);
    case DType::kU32:
      return CheckValues<uint32_t>(data, field, range);
    case DType::kF16:
      break;
  }
  return absl::InternalError(absl::StrCat(field.name, ": no state has this type"));
}

}  // namespace

absl::Status CheckLayer(const LayerBytes& layer) {
  const StateFields &fixed = layer.state.fixed, &block = layer.state.block;
  const auto n_fixed = static_cast<int>(fixed.list().size()),
             n_block = static_cast<int>(block.list().size());
  for (int f = 0; f < n_fixed; ++f) {
    absl::Status status = CheckField(layer.Fixed<std::byte>(f), fixed.list()[f], layer.live);
    if (!status.ok()) return status;
  }
  for (int64_t b = 0; b < BlocksOf(layer.live); ++b) {
    for (int f = 0; f < n_block; ++f) {
      const absl::Status status =
          CheckField(layer.Block<std::byte>(f, b), block.list()[f], layer.live);
      if (!status.ok()) {
        return absl::DataLossError(absl::StrCat("block ", b, ", head ", HeadOf(block, f), ": ",
                                                std::string(status.message())));
      }
    }
  }
  return layer.state.check ? layer.state.check(layer) : absl::OkStatus();
}

}  // namespace ovq

#include "kernels/mixers/weight_reader.h"

#include "absl/strings/str_cat.h"

namespace ovq::kernels {
namespace {

// A product with fewer outputs stays in the compute type: these are the gates of a few heads, whose
// bytes are next to nothing and whose errors would reach every head's values.
constexpr int64_t kLeastInt8Outputs = 64;

}  // namespace

TensorView WeightReader::GetTensor(std::string_view leaf, const Shape& shape) {
  const absl::StatusOr<TensorView> view = source_(absl::StrCat(prefix_, std::string(leaf)), shape);
  Update(view.status());
  return status_.ok() ? *view : TensorView();
}

std::vector<float> WeightReader::HostFloats(std::string_view leaf, const Shape& shape) {
  const TensorView view = GetTensor(leaf, shape);
  return status_.ok() ? ToFloats(view) : std::vector<float>();
}

Buffer WeightReader::Floats(std::string_view leaf, const Shape& shape) {
  const std::vector<float> values = HostFloats(leaf, shape);
  return status_.ok() ? context_.Upload(values.data(), values.size() * sizeof(float)) : Buffer();
}

Buffer WeightReader::Floats(std::initializer_list<WeightPart> parts, float scale) {
  std::vector<float> all;
  for (const WeightPart& part : parts) {
    for (float value : HostFloats(part.leaf, {part.rows})) all.push_back(value * scale);
  }
  return status_.ok() ? context_.Upload(all.data(), all.size() * sizeof(float)) : Buffer();
}

Buffer WeightReader::NormWeight(std::string_view leaf, int64_t n, NormWeightKind kind,
                                float scale) {
  std::vector<float> weight(static_cast<size_t>(n), 1);
  if (kind != NormWeightKind::kNone) {
    const std::vector<float> in_file = HostFloats(leaf, {n});
    for (size_t i = 0; i < in_file.size(); ++i) {
      weight[i] = kind == NormWeightKind::kOnePlus ? 1 + in_file[i] : in_file[i];
    }
  }
  for (float& value : weight) value *= scale;
  return status_.ok() ? context_.Upload(weight.data(), weight.size() * sizeof(float)) : Buffer();
}

Linear WeightReader::Product(std::span<const WeightPart> parts, int64_t in, float scale) {
  return Make(parts, in, scale, types_);
}

Linear WeightReader::FloatProduct(const WeightPart& part, int64_t in) {
  return Make({&part, 1}, in, 1, DType::kF32);
}

Linear WeightReader::Make(std::span<const WeightPart> parts, int64_t in, float scale,
                          ProductTypes types) {
  int64_t out = 0;
  for (const WeightPart& part : parts) out += part.rows;
  if (out < kLeastInt8Outputs) types.weights = WeightType::kAsComputed;
  const bool is_int8 = types.weights == WeightType::kInt8;
  std::vector<TensorView> views;
  std::string name = absl::StrCat(is_int8 ? "int8 " : "", DTypeName(types.compute), " ", scale);
  for (const WeightPart& part : parts) {
    views.push_back(GetTensor(part.leaf, {part.rows, in}));
    absl::StrAppend(&name, " ", prefix_, std::string(part.leaf));
  }
  if (!status_.ok()) return {};
  if (shared_ != nullptr && shared_->contains(name)) return shared_->at(name);

  std::vector<std::vector<float>> scaled;
  for (TensorView& view : views) {
    if (scale == 1) continue;
    for (float& weight : scaled.emplace_back(ToFloats(view))) weight *= scale;
    view = {scaled.back().data(), DType::kF32, view.shape};
  }
  absl::StatusOr<Linear> product = Linear::Make(views, types, context_);
  Update(product.status());
  if (!product.ok()) return {};
  if (shared_ != nullptr) shared_->emplace(name, *product);
  return *std::move(product);
}

}  // namespace ovq::kernels

#include "kernels/mixers/weight_reader.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/saturating.h"

namespace ovq::kernels {
namespace {

// A product with fewer outputs stays in the compute type: these are the gates of a few heads, whose
// bytes are next to nothing and whose errors would reach every head's values.
constexpr int64_t kLeastInt8Outputs = 64;

ProductTypes TypesFor(std::span<const WeightPart> parts, ProductTypes types) {
  if (TotalRows(parts) < kLeastInt8Outputs) types.weights = WeightType::kAsComputed;
  return types;
}

size_t ProductBytes(int64_t out, int64_t in, const ProductTypes& types) {
  const size_t row = types.weights == WeightType::kInt8
                         ? static_cast<size_t>(in) + sizeof(float)
                         : static_cast<size_t>(in) * DTypeBytes(types.compute);
  return SaturatingMultiply(static_cast<size_t>(out), row);
}

std::string TypesName(const ProductTypes& types) {
  return absl::StrCat(types.weights == WeightType::kInt8 ? "int8 " : "", DTypeName(types.compute));
}

}  // namespace

void WeightCount::Add(const WeightCount& more) {
  bytes = SaturatingAdd(bytes, more.bytes);
  expert_bytes = SaturatingAdd(expert_bytes, more.expert_bytes);
  expert_parameters = SaturatingAdd(expert_parameters, more.expert_parameters);
  idle_parameters = SaturatingAdd(idle_parameters, more.idle_parameters);
}

double WeightCount::ReadBy(int64_t n_tokens) const {
  if (expert_parameters == 0) return static_cast<double>(bytes);
  const double idle = static_cast<double>(idle_parameters) / static_cast<double>(expert_parameters);
  return static_cast<double>(bytes) -
         static_cast<double>(expert_bytes) * std::pow(idle, static_cast<double>(n_tokens));
}

TensorView WeightReader::GetTensor(std::string_view leaf, const Shape& shape) {
  count_.Add({.bytes = ProductBytes(shape.elements(), 1, types_.compute)});
  return Get(leaf, shape);
}

TensorView WeightReader::Get(std::string_view leaf, const Shape& shape) {
  if (!source_) return {};
  const absl::StatusOr<TensorView> view = source_(absl::StrCat(prefix_, std::string(leaf)), shape);
  Update(view.status());
  return status_.ok() ? *view : TensorView();
}

std::vector<float> WeightReader::HostFloats(std::string_view leaf, const Shape& shape) {
  count_.Add({.bytes = ProductBytes(shape.elements(), 1, DType::kF32)});
  const TensorView view = Get(leaf, shape);
  return status_.ok() ? ToFloats(view) : std::vector<float>();
}

Buffer WeightReader::Floats(std::string_view leaf, const Shape& shape) {
  const std::vector<float> values = HostFloats(leaf, shape);
  return status_.ok() ? context_.Upload(values) : Buffer();
}

Buffer WeightReader::Floats(std::span<const WeightPart> parts, float scale) {
  std::vector<float> all;
  for (const WeightPart& part : parts) {
    for (float value : HostFloats(part.leaf, {part.rows})) all.push_back(value * scale);
  }
  return status_.ok() ? context_.Upload(all) : Buffer();
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
  return status_.ok() ? context_.Upload(weight) : Buffer();
}

Linear WeightReader::Product(std::span<const WeightPart> parts, int64_t in, float scale) {
  return Make(parts, in, scale, types_);
}

Linear WeightReader::FloatProduct(const WeightPart& part, int64_t in) {
  return Make({&part, 1}, in, 1, DType::kF32);
}

Linear WeightReader::PlainProduct(std::span<const WeightPart> parts, int64_t in) {
  return Make(parts, in, 1, types_.compute);
}

template <class T, class MakeFn>
T WeightReader::Shared(std::map<std::string, T> SharedProducts::*kind, const std::string& name,
                       MakeFn&& make) {
  if (!status_.ok()) return {};
  if (shared_ != nullptr && (shared_->*kind).contains(name)) return (shared_->*kind).at(name);
  absl::StatusOr<T> product = make();
  Update(product.status());
  if (!product.ok()) return {};
  if (shared_ != nullptr) (shared_->*kind).emplace(name, *product);
  return *std::move(product);
}

Linear WeightReader::Make(std::span<const WeightPart> parts, int64_t in, float scale,
                          ProductTypes types) {
  types = TypesFor(parts, types);
  count_.Add({.bytes = ProductBytes(TotalRows(parts), in, types)});
  std::vector<TensorView> views;
  std::string name = absl::StrCat(TypesName(types), " ", scale);
  for (const WeightPart& part : parts) {
    TensorView view = Get(part.leaf, {part.of > 0 ? part.of : part.rows, in});
    if (view.data != nullptr && part.of > 0) view = Rows(view, part.first, part.rows);
    views.push_back(view);
    absl::StrAppend(&name, " ", prefix_, std::string(part.leaf));
    if (part.of > 0) absl::StrAppend(&name, "[", part.first, "]");
  }
  return Shared(&SharedProducts::linear, name, [&] {
    std::vector<std::vector<float>> scaled;
    for (TensorView& view : views) {
      if (scale == 1) continue;
      for (float& weight : scaled.emplace_back(ToFloats(view))) weight *= scale;
      view = {scaled.back().data(), DType::kF32, view.shape};
    }
    return Linear::Make(views, types, context_);
  });
}

ExpertLinear WeightReader::Experts(std::string_view prefix, const RouterSpec& router,
                                   std::span<const WeightPart> parts, int64_t in) {
  const ProductTypes types = TypesFor(parts, types_);
  const int n_experts = router.n_experts;
  const auto of_experts = [&](int n, size_t of_one) {
    return SaturatingMultiply(static_cast<size_t>(n), of_one);
  };
  const size_t bytes = of_experts(n_experts, ProductBytes(TotalRows(parts), in, types));
  const auto parameters = static_cast<size_t>(TotalRows(parts) * in);
  count_.Add({.bytes = bytes,
              .expert_bytes = bytes,
              .expert_parameters = of_experts(n_experts, parameters),
              .idle_parameters = of_experts(n_experts - router.n_chosen, parameters)});
  std::vector<TensorView> views;
  std::string name = TypesName(types);
  for (int e = 0; e < n_experts; ++e) {
    for (const WeightPart& part : parts) {
      const std::string leaf = absl::StrCat(std::string(prefix), e, ".", std::string(part.leaf));
      views.push_back(Get(leaf, {part.rows, in}));
      if (e == 0) absl::StrAppend(&name, " ", prefix_, leaf);
    }
  }
  return Shared(&SharedProducts::experts, name,
                [&] { return ExpertLinear::Make(views, n_experts, types, context_); });
}

}  // namespace ovq::kernels

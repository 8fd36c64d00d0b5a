#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/common/dispatch.h"
#include "kernels/ops/matmul_device.h"

namespace ovq {
namespace {

float Element(const TensorView& part, int64_t i) {
  switch (part.dtype) {
    case DType::kF32:
      return part.as<float>()[i];
    case DType::kBF16:
      return ToFloat(part.as<BF16>()[i]);
    default:
      return HalfToFloat(part.as<uint16_t>()[i]);
  }
}

absl::Status CheckPart(const TensorView& part, int64_t in) {
  if (part.dtype != DType::kF32 && part.dtype != DType::kBF16 && part.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of a matrix product: expected F32, "
                     "BF16 or F16, got ",
                     DTypeName(part.dtype)));
  }
  if (part.shape.rank() != 2 || part.shape[0] < 1 || part.shape[1] != in || in < 1) {
    return absl::InvalidArgumentError(absl::StrCat("weights of a matrix product: expected [out, ",
                                                   in, "], got ", part.shape.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

template <class T>
void CopyRow(const StackedWeights& weights, int64_t row, T* dst) {
  const TensorView* part = weights.parts.data();
  for (; row >= part->shape[0]; ++part) row -= part->shape[0];
  const bool round = weights.compute == DType::kBF16;
  for (int64_t i = 0; i < weights.in; ++i) {
    const float value = Element(*part, row * weights.in + i);
    dst[i] = FromFloat<T>(round ? ToFloat(RoundToBF16(value)) : value);
  }
}
template void CopyRow<float>(const StackedWeights&, int64_t, float*);
template void CopyRow<BF16>(const StackedWeights&, int64_t, BF16*);

struct Linear::Impl {
  int64_t in;
  int64_t out;
  DType compute;
  Product product;
};

Linear::Linear() = default;
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

absl::StatusOr<Linear> Linear::Make(std::span<const TensorView> parts, DType compute,
                                    DeviceContext& context) {
  if (parts.empty()) return absl::InvalidArgumentError("a matrix product without weights");
  if (compute != DType::kF32 && compute != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("matrix products are computed in F32 or BF16, not in ", DTypeName(compute)));
  }
  StackedWeights weights{parts, parts[0].shape.rank() == 2 ? parts[0].shape[1] : 0, 0, compute};
  for (const TensorView& part : parts) {
    const absl::Status status = CheckPart(part, weights.in);
    if (!status.ok()) return status;
    weights.out += part.shape[0];
  }
  Linear linear;
  linear.impl_ = std::make_unique<Impl>(Impl{weights.in, weights.out, compute, Product()});
  Dispatch<ref::MakeProduct, cpu::MakeProduct, cuda::MakeProduct>(context, weights,
                                                                  &linear.impl_->product);
  return linear;
}

int64_t Linear::in() const { return impl_->in; }
int64_t Linear::out() const { return impl_->out; }
DType Linear::compute() const { return impl_->compute; }
size_t Linear::bytes() const {
  return std::visit([](const auto& product) { return product->bytes(); }, impl_->product);
}

void Linear::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const {
  Check(impl_ != nullptr, "Linear: not made yet");
  Check(x.dtype == impl_->compute && y.dtype == DType::kF32, "Linear: x in compute(), y float32");
  Check(x.shape.rank() == 2 && x.shape[1] == impl_->in, "Linear: x is [n, in]");
  Check((y.shape == Shape{x.shape[0], impl_->out}), "Linear: y is [n, out]");
  if (x.shape[0] == 0) return;
  std::visit([&](const auto& product) { product->Apply(context, x, y, accumulate); },
             impl_->product);
}

}  // namespace ovq

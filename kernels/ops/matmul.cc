#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/common/dispatch.h"
#include "kernels/ops/matmul_device.h"

namespace ovq::kernels {
namespace {

absl::Status CheckPart(const TensorView& part, int64_t in) {
  if (part.dtype != DType::kF32 && part.dtype != DType::kBF16 && part.dtype != DType::kF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of a matrix product: expected F32, BF16 or F16, got ", DTypeName(part.dtype)));
  }
  if (part.shape.rank() != 2 || part.shape[0] < 1 || part.shape[1] != in || in < 1) {
    return absl::InvalidArgumentError(absl::StrCat("weights of a matrix product: expected [out, ",
                                                   in, "], got ", part.shape.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

void CopyRow(const StackedWeights& weights, int64_t row, void* dst) {
  const TensorView* part = weights.parts.data();
  for (; row >= part->shape[0]; ++part) row -= part->shape[0];
  if (part->dtype == weights.compute) {
    const size_t bytes = weights.row_bytes();
    std::memcpy(dst, part->as<std::byte>() + static_cast<size_t>(row) * bytes, bytes);
    return;
  }
  for (int64_t i = 0; i < weights.in; ++i) {
    const float value = FloatAt(*part, row * weights.in + i);
    if (weights.compute == DType::kF32) {
      static_cast<float*>(dst)[i] = value;
    } else {
      static_cast<BF16*>(dst)[i] = RoundToBF16(value);
    }
  }
}

std::vector<std::byte> TestRows(int64_t n, int64_t in, DType compute) {
  std::vector<float> values(static_cast<size_t>(n * in));
  uint32_t seed = 1;
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  const TensorView all[] = {{values.data(), DType::kF32, {n, in}}};
  const StackedWeights rows{all, in, n, compute};
  std::vector<std::byte> bytes(static_cast<size_t>(n) * rows.row_bytes());
  for (int64_t row = 0; row < n; ++row) CopyRow(rows, row, bytes.data() + row * rows.row_bytes());
  return bytes;
}

absl::StatusOr<StackedWeights> Stack(std::span<const TensorView> parts, ProductTypes types,
                                     const DeviceContext& context) {
  const DType compute = types.compute;
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
  if (types.weights == WeightType::kAsComputed) return weights;
  if (context.device() == Device::kCuda && compute != DType::kBF16) {
    return absl::UnimplementedError("int8 weights on CUDA: products are computed in BF16 only");
  }
  if (weights.in > kMaxInt8Inputs) {
    return absl::InvalidArgumentError(absl::StrCat("int8 weights: expected at most ",
                                                   kMaxInt8Inputs, " inputs of a product, got ",
                                                   weights.in));
  }
  return weights;
}

absl::StatusOr<Linear> Linear::Make(std::span<const TensorView> parts, ProductTypes types,
                                    DeviceContext& context) {
  ASSIGN_OR_RETURN(const StackedWeights weights, Stack(parts, types, context));
  Linear linear;
  linear.in_ = weights.in;
  linear.out_ = weights.out;
  linear.compute_ = weights.compute;
  linear.product_ = types.weights == WeightType::kAsComputed
                        ? Dispatch<cpu::MakeProduct, cuda::MakeProduct>(context, weights)
                        : Dispatch<cpu::MakeInt8Product, cuda::MakeInt8Product>(context, weights);
  return linear;
}

bool Linear::Fused(DeviceContext& context, const ProductRows& rows, TensorView y,
                   ProductEnd end) const {
  const Shape& shape = rows.x.shape;
  Check(product_.apply != nullptr, "Linear: not made yet");
  Check(rows.x.dtype == compute_, "Linear: x in its type");
  Check(shape.rank() == 2 && shape[1] == in_, "Linear: x is [n, in]");
  const int64_t width = end == ProductEnd::kSwiGlu ? out_ / 2 : out_;
  Check((y.shape == Shape{shape[0], width}), "Linear: y has a row for each of x");
  return product_.fused && shape[0] > 0 && product_.fused(context, rows, y, end);
}

void Linear::Apply(DeviceContext& context, const ProductRows& rows, TensorView y,
                   bool accumulate) const {
  Check(y.dtype == DType::kF32, "Linear: y is float32");
  if (Fused(context, rows, y, accumulate ? ProductEnd::kAdd : ProductEnd::kStore)) return;
  if (rows.norm) RmsNorm(context, rows.h, *rows.norm, rows.x, rows.h_rows);
  if (y.shape[0] > 0) product_.apply(context, rows.x, y, accumulate);
}

void Linear::ApplySwiGlu(DeviceContext& context, const ProductRows& rows, TensorView y) const {
  if (Fused(context, rows, y, ProductEnd::kSwiGlu)) return;
  ScratchScope scope(context);
  const TensorView gate_up = scope.Tensor(DType::kF32, {y.shape[0], out_});
  Apply(context, rows, gate_up);
  SwiGlu(context, gate_up, y);
}

}  // namespace ovq::kernels

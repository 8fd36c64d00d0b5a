// The row-wise operations of ops.h on each device. Arguments are already validated.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops/ops.h"

namespace ovq::ref {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          double theta);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::ref

namespace ovq::cpu {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          double theta);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::cpu

namespace ovq::cuda {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          double theta);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::cuda

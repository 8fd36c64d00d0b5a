// The row-wise operations of ops.h on each device. Arguments are already validated.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops/ops.h"

namespace ovq {

// The phase in half turns, in [-1, 1]: its upper 64 bits as a signed number.
constexpr double HalfTurns(Phase phase) {
  const auto upper = static_cast<int64_t>(static_cast<uint64_t>(phase >> 64));
  return static_cast<double>(upper) * 0x1p-63;
}

// The operations that HeadPrep names, one after another, in the host's memory.
void PrepareHeadsOnHost(DeviceContext& context, const HeadPrep& prep);

}  // namespace ovq

namespace ovq::ref {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::ref

namespace ovq::cpu {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::cpu

namespace ovq::cuda {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows);
void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale);
void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y);
void LogSumExp(DeviceContext& context, TensorView x, float* out);
void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table);
void PrepareHeads(DeviceContext& context, const HeadPrep& prep);
void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y);

}  // namespace ovq::cuda

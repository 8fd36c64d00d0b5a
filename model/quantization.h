// Quantized weights of other programs: "quantization_config" of config.json, and tensors of
// integers or 8-bit floats with their scales, which become made tensors (MadeTensor). With integers
// or floats q [out, in], scales s and zero points z of blocks, every form is
//   W[o, i] = (q[o, i] - z[b(o), g(i)]) s[b(o), g(i)]
// in float32, where a block is a tensor, a row, a group of columns, or a rectangle. The experts of
// a layer may be one tensor [n, out, in], whose scales are then those of each.
//
// Forms: fp8 of Hugging Face transformers; compressed-tensors (vLLM's); AWQ as AutoAWQ writes it
// ("gemm"); GPTQ as AutoGPTQ and GPTQModel write it; ModelOpt's FP8. docs/model-format.md,
// "Quantized weights".
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/json.h"
#include "model/weights.h"

namespace ovq::model {

enum class QuantizationMethod : uint8_t { kNone, kFp8, kCompressedTensors, kAwq, kGptq, kModelOpt };
// "none", "fp8", "compressed-tensors", "awq", "gptq", "modelopt".
std::string_view QuantizationName(QuantizationMethod method);

struct QuantizationSpec {
  QuantizationMethod method = QuantizationMethod::kNone;
  int bits = 0;                               // of AWQ (4) and GPTQ (4 or 8)
  bool zeros_less_one = false;                // GPTQ's first format stores z - 1
  int64_t block_rows = 0, block_columns = 0;  // of a scale's rectangle; 0: none
};

// Reads the object. InvalidArgument with all problems, which name fields
// "quantization_config.bits".
absl::Status ReadQuantization(const nlohmann::json& object, QuantizationSpec& spec);

// Adds a made tensor for each quantized one, NAME.weight or that of all experts. InvalidArgument
// with all problems, each with the tensor's name.
absl::Status AddQuantized(const QuantizationSpec& spec, Weights& weights);

// How much the made tensors lose when they are rounded once more: sqrt(sum (w' - w)^2 / sum w^2)
// over all their elements w, w' being bfloat16, or the int8 with a scale for each row that
// --weights int8 makes of that.
struct RoundingLoss {
  double bf16 = 0, int8 = 0;
};
RoundingLoss MeasureLoss(const Weights& weights);

}  // namespace ovq::model

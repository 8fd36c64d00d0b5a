// A layer's weights on their way into a mixer or a model.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/problems.h"
#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/ops/ops.h"

namespace ovq {

// Gives the tensor of that name after checking that it is there and has this shape.
using WeightSource =
    std::function<absl::StatusOr<TensorView>(const std::string& name, const Shape& shape)>;

// One [rows, in] weight of a product, or one vector [rows].
struct WeightPart {
  std::string_view leaf;
  int64_t rows;
};

// What a norm multiplies by, of a tensor w: w, 1 + w, or 1 without a tensor.
enum class NormWeightKind : uint8_t { kPlain, kOnePlus, kNone };

// Products on the device, by their weights' names: models of one folder that take the same weights
// share them.
using SharedProducts = std::map<std::string, Linear>;

// Takes weights by name and keeps every error (SplitProblems its status). Once there is one, names
// and shapes are still asked for, but nothing is loaded: what is taken is empty. So that no error
// hides another, a mixer takes all its weights before it looks at status().
class WeightReader {
 public:
  // types: of the products. Names are read as prefix + leaf. With an error to begin with, the
  // reader only checks. What is in `shared` is not made again; what is made joins it.
  WeightReader(const WeightSource& source, ProductTypes types, DeviceContext& context,
               std::string prefix = "", absl::Status status = absl::OkStatus(),
               SharedProducts* shared = nullptr)
      : source_(source),
        types_(types),
        context_(context),
        prefix_(std::move(prefix)),
        status_(std::move(status)),
        shared_(shared) {}

  const absl::Status& status() const { return status_; }
  DeviceContext& context() const { return context_; }
  void Update(const absl::Status& status) { AddProblems(status_, status); }

  TensorView GetTensor(std::string_view leaf, const Shape& shape);
  // As float32 in the device's memory.
  Buffer Floats(std::string_view leaf, const Shape& shape);
  std::vector<float> HostFloats(std::string_view leaf, const Shape& shape);
  // Vectors end to end, times scale.
  Buffer Floats(std::initializer_list<WeightPart> parts, float scale = 1);
  // float [n] in the device's memory: what a norm multiplies by, times scale.
  Buffer NormWeight(std::string_view leaf, int64_t n, NormWeightKind kind, float scale = 1);
  // y = scale x W^T, x [n, in]: the parts' columns of y lie side by side in their order.
  Linear Product(std::span<const WeightPart> parts, int64_t in, float scale = 1);
  Linear Product(std::initializer_list<WeightPart> parts, int64_t in, float scale = 1) {
    return Product(std::span(parts.begin(), parts.size()), in, scale);
  }
  // In float32 whatever the compute dtype is.
  Linear FloatProduct(const WeightPart& part, int64_t in);

 private:
  const WeightSource& source_;
  const ProductTypes types_;
  DeviceContext& context_;
  const std::string prefix_;
  absl::Status status_;
  SharedProducts* const shared_;

  Linear Make(std::span<const WeightPart> parts, int64_t in, float scale, ProductTypes types);
};

}  // namespace ovq

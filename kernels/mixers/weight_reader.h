// WeightReader loads a layer's weights by name and collects the errors. Used by mixers and models.
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

namespace ovq::kernels {

// Returns the tensor of that name after checking that it exists and has this shape.
using WeightSource =
    std::function<absl::StatusOr<TensorView>(const std::string& name, const Shape& shape)>;

// One [rows, in] weight of a product, or one vector [rows].
struct WeightPart {
  std::string_view leaf;
  int64_t rows;
};

// A norm's factor, given a tensor w: w, 1 + w, or 1 without a tensor.
enum class NormWeightKind : uint8_t { kPlain, kOnePlus, kNone };

// Products on the device, keyed by their weights' names: models of one folder share the products of
// the same weights.
using SharedProducts = std::map<std::string, Linear>;

// Reads weights by name and keeps every error (SplitProblems takes the status apart). After an
// error it still checks names and shapes but loads nothing and returns empty values. So that no
// error hides another, a mixer reads all its weights before it looks at status().
class WeightReader {
 public:
  // types: of the products. A weight's name is prefix + leaf. With an error in `status` the reader
  // only checks. Products found in `shared` are reused; new ones are added to it.
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
  // Returns the tensor as float32 in the device's memory.
  Buffer Floats(std::string_view leaf, const Shape& shape);
  std::vector<float> HostFloats(std::string_view leaf, const Shape& shape);
  // Returns the vectors end to end, times scale, as float32 in the device's memory.
  Buffer Floats(std::initializer_list<WeightPart> parts, float scale = 1);
  // Returns a norm's factors times scale, float32 [n] in the device's memory.
  Buffer NormWeight(std::string_view leaf, int64_t n, NormWeightKind kind, float scale = 1);
  // y[n, sum of rows] = scale x[n, in] W^T, W being the parts stacked in their order.
  Linear Product(std::span<const WeightPart> parts, int64_t in, float scale = 1);
  Linear Product(std::initializer_list<WeightPart> parts, int64_t in, float scale = 1) {
    return Product(std::span(parts.begin(), parts.size()), in, scale);
  }
  // Computes in float32 whatever the compute dtype is.
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

}  // namespace ovq::kernels

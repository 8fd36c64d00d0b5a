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
#include "kernels/ops/experts.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// Returns the tensor of that name after checking that it exists and has this shape.
using WeightSource =
    std::function<absl::StatusOr<TensorView>(const std::string& name, const Shape& shape)>;

// One [rows, in] weight of a product, or one vector [rows].
struct WeightPart {
  std::string_view leaf;
  int64_t rows;
  // For some rows of a larger weight of a product: the first, and the number of all; 0: all rows.
  int64_t first = 0, of = 0;
};
// The rows of all parts.
inline int64_t TotalRows(std::span<const WeightPart> parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  return rows;
}

// A norm's factor, given a tensor w: w, 1 + w, or 1 without a tensor.
enum class NormWeightKind : uint8_t { kPlain, kOnePlus, kNone };

// Products on the device, keyed by their weights' names: models of one folder share the products of
// the same weights.
struct SharedProducts {
  std::map<std::string, Linear> linear;
  std::map<std::string, ExpertLinear> experts;
};

// WeightCount is what weights take in memory: products in their types, int8 with a float32
// scale for each output, vectors in float32. Saturates at the largest number.
struct WeightCount {
  size_t bytes = 0;
  // Experts of mixtures are counted apart, and those among them that a token does not choose.
  size_t expert_bytes = 0, expert_parameters = 0, idle_parameters = 0;

  void Add(const WeightCount& more);
  // Bytes that n tokens read where each chooses its experts evenly: of the experts' bytes they
  // leave (idle_parameters / expert_parameters)^n unread.
  double ReadBy(int64_t n_tokens) const;
};

// Reads weights by name and keeps every error (SplitProblems takes the status apart). After an
// error it still checks names and shapes but loads nothing and returns empty values. So that no
// error hides another, a mixer reads all its weights before it looks at status().
class WeightReader {
 public:
  // types: of the products. A weight's name is prefix + leaf. With an error in `status` the reader
  // only checks, and without a source it only counts. Products found in `shared` are reused; new
  // ones are added to it.
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
  const WeightCount& count() const { return count_; }  // of all that was asked for, loaded or not
  // Whether large products round their weights, to fewer bits than they compute in.
  bool rounds() const { return types_.weights != WeightType::kAsComputed; }
  DeviceContext& context() const { return context_; }
  void Update(const absl::Status& status) { AddProblems(status_, status); }

  TensorView GetTensor(std::string_view leaf, const Shape& shape);
  // Returns the tensor as float32 in the device's memory.
  Buffer Floats(std::string_view leaf, const Shape& shape);
  std::vector<float> HostFloats(std::string_view leaf, const Shape& shape);
  // Returns the vectors end to end, times scale, as float32 in the device's memory.
  Buffer Floats(std::span<const WeightPart> parts, float scale = 1);
  Buffer Floats(std::initializer_list<WeightPart> parts, float scale = 1) {
    return Floats(std::span(parts.begin(), parts.size()), scale);
  }
  // Returns a norm's factors times scale, float32 [n] in the device's memory.
  Buffer NormWeight(std::string_view leaf, int64_t n, NormWeightKind kind, float scale = 1);
  // y[n, sum of rows] = scale x[n, in] W^T, W being the parts stacked in their order.
  Linear Product(std::span<const WeightPart> parts, int64_t in, float scale = 1);
  Linear Product(std::initializer_list<WeightPart> parts, int64_t in, float scale = 1) {
    return Product(std::span(parts.begin(), parts.size()), in, scale);
  }
  // Computes in float32 whatever the compute dtype is.
  Linear FloatProduct(const WeightPart& part, int64_t in);
  // Keeps its weights in the compute dtype where others are int8.
  Linear PlainProduct(std::span<const WeightPart> parts, int64_t in);
  // y[n, sum of rows] = x[n, in] W_e^T for each expert, its parts named PREFIX e.LEAF.
  ExpertLinear Experts(std::string_view prefix, const RouterSpec& router,
                       std::span<const WeightPart> parts, int64_t in);

 private:
  const WeightSource& source_;
  const ProductTypes types_;
  DeviceContext& context_;
  const std::string prefix_;
  absl::Status status_;
  SharedProducts* const shared_;
  WeightCount count_;

  TensorView Get(std::string_view leaf, const Shape& shape);
  Linear Make(std::span<const WeightPart> parts, int64_t in, float scale, ProductTypes types);
  // Returns the product of this name in `shared`, else the one that make() gives.
  template <class T, class MakeFn>
  T Shared(std::map<std::string, T> SharedProducts::*kind, const std::string& name, MakeFn&& make);
};

}  // namespace ovq::kernels

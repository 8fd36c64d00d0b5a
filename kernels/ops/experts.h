// Mixtures of experts: the choice of each row's experts, the products of every expert with its
// rows, and the weighted sum of a row's experts. As in ops.h a row's bits depend on that row alone:
// not on the rows beside it, their number, or which experts they choose. All memory is the
// device's.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/device.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/tensor.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

inline constexpr int kMaxExperts = 1024;

enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

// How a row chooses n_chosen = k of n_experts = E experts by its logits z [E], in float32:
//   p = softmax(z) or sigmoid(z), both over all E;  c = p + bias
//   The E / n_groups neighbours of a group have the sum of their two largest c as its score;
//   outside of the n_kept_groups best groups c = dropped. T = the k largest c in descending order,
//   of equal ones the lowest index first;  w = p[T] w = w / (sum of w + 1e-20) if normalizes;  w =
//   scale w
// Softmax over the chosen logits alone is softmax with normalizes. A c that is not a number counts
// as minus infinity.
struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;
  int n_experts = 0, n_chosen = 0;
  int n_groups = 1, n_kept_groups = 1;  // n_groups divides n_experts; the kept ones hold k experts
  float dropped = -std::numeric_limits<float>::infinity();
  bool normalizes = true;
  float scale = 1;
};

// Some rows of one expert, on CUDA: a thread block's work.
struct ExpertTile {
  int32_t expert, first, n;  // places [first, first + n), at most Routes::tile_rows; n may be 0
};

// Which rows go to which experts. The n_rows k pairs of a row and one of its experts have places in
// the order of their experts; the places of an expert are together, in no particular order.
struct Routes {
  // Memory of `scope`, for Route to fill.
  Routes(ScratchScope& scope, const RouterSpec& router, int64_t n_rows);
  int64_t n_places() const { return n_rows * n_chosen; }

  int64_t n_rows;
  int n_experts, n_chosen;
  float* weights;   // [n_rows, k]: w
  int32_t* places;  // [n_rows, k]: the place of each pair
  int32_t* rows;    // [n_places]: the row of each place
  int32_t* begin;   // [E + 1]: the first place of each expert, and the end
  // On CUDA: tiles that cover all places, as many as there can be with this many rows.
  int tile_rows;
  int64_t n_tiles;
  ExpertTile* tiles;
};

// logits [n_rows, at least E] F32, columns after the first E ignored; bias [E], or null for none.
void Route(DeviceContext& context, const RouterSpec& router, const float* bias, TensorView logits,
           const Routes& routes);

// h[row] = (h[row] if accumulate) + sum over j of w[row, j] y[place of (row, j)], j ascending, then
// + sigmoid(gate[row]) shared[row] if there is one. y [n_places, d], h and shared [n_rows, d], F32.
struct ExpertSum {
  TensorView y, h;
  bool accumulate;
  const float* shared = nullptr;
  const float* gate = nullptr;  // gate_stride apart
  int64_t gate_stride = 0;
};
void SumExperts(DeviceContext& context, const Routes& routes, const ExpertSum& sum);

// The experts' weights packed for a GPU, and their product.
struct ExpertProduct {
  std::function<void(DeviceContext& context, const Routes& routes, TensorView x, TensorView y)>
      apply;
};

// The weights W_e [out, in] of n_experts products y = x W_e^T. A product reads the weights of those
// experts alone that have rows.
class ExpertLinear {
 public:
  // parts: those of the first expert, stacked along out as for Linear, then as many of each next
  // one. Errors as Linear::Make.
  static absl::StatusOr<ExpertLinear> Make(std::span<const TensorView> parts, int n_experts,
                                           ProductTypes types, DeviceContext& context);

  int64_t out() const { return out_; }

  // y[i] = x[i] W_e^T for every place i of each expert e. x [n_places, in] in the compute type,
  // y [n_places, out] F32.
  void Apply(DeviceContext& context, const Routes& routes, TensorView x, TensorView y) const;

 private:
  int64_t in_ = 0, out_ = 0;
  std::vector<Linear> experts_;  // on the CPU
  ExpertProduct product_;        // on CUDA
};

// --- on each device, with valid arguments ----------------------------------------------------

OVQ_ON_EVERY_DEVICE(Route)
OVQ_ON_EVERY_DEVICE(SumExperts)

// Sets places, rows and begin of `routes` by the chosen experts [n_rows, k], on the host.
void PlaceRows(std::span<const int32_t> chosen, const Routes& routes);

struct StackedWeights;

namespace cuda {
// The kernels of MakeOwnProduct and MakeInt8Product, over the tiles of Routes. experts: equal in
// shape and compute type; int8 weights only with kBF16.
ExpertProduct MakeExpertProduct(DeviceContext& context, std::span<const StackedWeights> experts,
                                WeightType type);
}  // namespace cuda

}  // namespace ovq::kernels

// The frame around a recurrence, with a layer that is described here: each head sums what its
// convolved channel brings.
#include "kernels/mixers/recurrent/recurrent_mixer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "tests/kernels/mixers/recurrent_util.h"

namespace ovq::kernels::test {
namespace {

constexpr int64_t kDim = 3, kHeads = 2;
enum Channel { kInput = 0, kOutputGate = 2, kDecayInput = 4, kGateInput = 6, kChannels = 8 };
constexpr float kMaxDt = 0.5f, kEps = 0.1f;

struct SumConfig {};
void ReadConfig(const FieldReaders&, SumConfig&) {}

// s <- decay s + gate c,  y = s
class SumLayer final : public RecurrentMixer {
 public:
  using Config = SumConfig;
  SumLayer(const StateSpec&, const Config&) : RecurrentMixer(Describe()) {}

 private:
  static RecurrentLayer Describe() {
    return {.n_heads = kHeads,
            .fields = {{"sums", DType::kF32, {kHeads, 1}}},
            .in = {{"in.weight", kDecayInput, 0, kChannels}},
            .gates_in = {{"in.weight", kChannels - kDecayInput, kDecayInput, kChannels}},
            .out = {"out.weight", kHeads},
            .in_bias = "in.bias",
            .out_bias = "out.bias",
            .conv = {.filters = {{"conv", kHeads}},
                     .first = kInput,
                     .width = kHeads,
                     .size = 2,
                     .has_bias = true},
            .decay = RecurrentLayer::DecayInput{.channel = 0, .max_dt = kMaxDt},
            .sigmoids = {{.channel = kGateInput - kDecayInput, .bias = "gate.bias", .scale = 2}},
            .norm = {.weight = "norm.weight", .shares_weight = false, .eps = kEps},
            .gate = {.kind = GateKind::kSilu, .channel = kOutputGate}};
  }
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const override {
    for (int s = 0; s < args.seqs.n_seqs(); ++s) {
      for (int64_t t = args.seqs.token_begin[s]; t < args.seqs.token_begin[s + 1]; ++t) {
        for (int h = 0; h < kHeads; ++h) {
          float& sum = *args.where.FixedPlace(state_, 0).At<float>(args.seqs.state[s], h);
          sum = inputs.decay[t * kHeads + h] * sum +
                inputs.sigmoids[0][t * kHeads + h] *
                    inputs.convolved[t * inputs.convolved_stride + h];
          inputs.y[t * kHeads + h] = sum;
        }
      }
    }
  }
};

using Weights = std::map<std::string, std::vector<float>>;

Weights RandomLayerWeights() {
  Weights weights;
  uint64_t seed = 1;
  for (const auto& [name, size] : std::map<std::string, int64_t>{{"in.weight", kChannels * kDim},
                                                                 {"in.bias", kChannels},
                                                                 {"out.weight", kDim * kHeads},
                                                                 {"out.bias", kDim},
                                                                 {"conv.weight", 2 * kHeads},
                                                                 {"conv.bias", kHeads},
                                                                 {"gate.bias", kHeads},
                                                                 {"norm.weight", kHeads},
                                                                 {"self_attn.A_log", kHeads},
                                                                 {"self_attn.dt_bias", kHeads}}) {
    weights[name] = RandomNormal(static_cast<size_t>(size), seed++);
  }
  return weights;
}

double Sigma(double z) { return 1 / (1 + std::exp(-z)); }

// The layer's result for the tokens x of a new session, by the equations of RecurrentMixer.
std::vector<float> Expected(Weights& w, const std::vector<float>& x) {
  std::vector<float> y;
  double sums[kHeads] = {}, newest[kHeads] = {};
  for (size_t token = 0; token < x.size() / kDim; ++token) {
    double p[kChannels], r[kHeads], squares = 0;
    for (size_t c = 0; c < kChannels; ++c) {
      p[c] = w["in.bias"][c];
      for (size_t i = 0; i < kDim; ++i) p[c] += w["in.weight"][c * kDim + i] * x[token * kDim + i];
    }
    for (size_t h = 0; h < kHeads; ++h) {
      const double input = p[kInput + h];
      const double conv = w["conv.weight"][2 * h] * newest[h] +
                          w["conv.weight"][2 * h + 1] * input + w["conv.bias"][h];
      newest[h] = input;
      const double z = p[kDecayInput + h] + w["self_attn.dt_bias"][h];
      const double dt = std::min<double>(std::log1p(std::exp(z)), kMaxDt);
      const double gate = 2 * Sigma(p[kGateInput + h] + w["gate.bias"][h]);
      sums[h] =
          std::exp(-std::exp(w["self_attn.A_log"][h]) * dt) * sums[h] + gate * conv * Sigma(conv);
      squares += sums[h] * sums[h];
    }
    for (size_t h = 0; h < kHeads; ++h) {
      const double z = p[kOutputGate + h];
      r[h] = sums[h] / std::sqrt(squares / kHeads + kEps) * w["norm.weight"][h] * z * Sigma(z);
    }
    for (size_t i = 0; i < kDim; ++i) {
      double out = 0;
      for (size_t h = 0; h < kHeads; ++h) out += w["out.weight"][i * kHeads + h] * r[h];
      y.push_back(static_cast<float>(3 * (out + w["out.bias"][i])));
    }
  }
  return y;
}

// The layer with a residual scale of 3.
std::unique_ptr<SequenceMixer> MakeLayer(DeviceContext& context, Weights& w,
                                         ProductTypes types = DType::kF32) {
  const WeightSource source = [&w](const std::string& name, const Shape& shape) {
    return absl::StatusOr<TensorView>(TensorView{w.at(name).data(), DType::kF32, shape});
  };
  const LayerConfig<SumConfig> config = {};
  WeightReader weights(source, types, context);
  auto mixer = MakeEntry<SumLayer>("", "").make({.layer = 0,
                                                 .state = {.config = config,
                                                           .d_model = kDim,
                                                           .kv_dtype = DType::kF32,
                                                           .device = context.device()},
                                                 .weights = weights,
                                                 .compute_dtype = DType::kF32,
                                                 .residual_scale = 3,
                                                 .context = context});
  EXPECT_TRUE(mixer.ok()) << mixer.status();
  return *std::move(mixer);
}

// Runs tokens of one session through the layer, on top of a residual of ones.
Result RunTokens(DeviceContext& context, const SequenceMixer& layer, int64_t start,
                 const std::vector<float>& state, std::vector<float> x) {
  const auto n = static_cast<int32_t>(x.size() / kDim);
  return RunBatch(context, {{n}, {start}, {state}}, [&](const BatchSequences& seqs) {
    std::vector<float> y(x.size(), 1.0f);
    ScratchScope scope(context);
    BatchTensors tensors(scope);
    const LayerState where;
    layer.Forward({.context = context, .seqs = seqs, .where = where, .tensors = tensors},
                  TensorView{x.data(), DType::kF32, {n, kDim}}, {y.data(), DType::kF32, {n, kDim}});
    return y;
  });
}

// With int8 weights the gates have a product of their own; at these sizes neither is rounded.
TEST(RecurrentMixer, FollowsItsDescription) {
  for (const auto& [device, rounding] : {std::pair(Device::kReference, WeightType::kAsComputed),
                                         std::pair(Device::kCpu, WeightType::kAsComputed),
                                         std::pair(Device::kCpu, WeightType::kInt8)}) {
    const auto context = MakeContext(device);
    context->BindThread();
    Weights weights = RandomLayerWeights();
    const auto layer = MakeLayer(*context, weights, {DType::kF32, rounding});
    const std::vector<float> x = RandomNormal(7 * kDim, 20);
    std::vector<float> expected = Expected(weights, x);
    for (float& y : expected) y += 1;
    const std::vector<float> empty(layer->state().fixed.bytes() / sizeof(float));
    const Result head = RunTokens(*context, *layer, 0, empty, TokenRows(x, 0, 4, kDim));
    Result tail = RunTokens(*context, *layer, 4, head.states[0], TokenRows(x, 4, 7, kDim));
    tail.y.insert(tail.y.begin(), head.y.begin(), head.y.end());
    AssertClose(tail.y, expected, 64 * kRoundF32, DeviceName(device));
  }
}

TEST(RecurrentMixer, KeepsTheNewestInputsBehindTheRecurrencesFields) {
  const auto context = MakeContext(Device::kCpu);
  Weights weights = RandomLayerWeights();
  const auto layer = MakeLayer(*context, weights);
  const std::vector<StateField>& fields = layer->state().fixed.list();
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_STREQ(fields[0].name, "sums");
  EXPECT_STREQ(fields[1].name, "newest_inputs");
  EXPECT_EQ(fields[1].shape, (Shape{1, kHeads}));
  const TokenRange tokens = {.begin = 3, .end = 5, .slot_cap = 2};
  const std::vector<StateExtent> undo = layer->UndoExtents({.fixed_offset = 64}, tokens);
  ASSERT_EQ(undo.size(), 1u);
  EXPECT_EQ(undo[0].offset, 64u);
  EXPECT_EQ(undo[0].bytes, layer->state().fixed.bytes());
  EXPECT_FALSE(layer->CanUndoSuffix(tokens));
}

}  // namespace
}  // namespace ovq::kernels::test

#include "tests/kernels/mixers/mixer_test_util.h"

#include <algorithm>
#include <cmath>

namespace ovq::kernels::test {
namespace {

std::vector<MixerCase>& AddedCases() {
  static auto* const cases = new std::vector<MixerCase>;
  return *cases;
}

std::map<std::string, std::map<std::string, Attrs::Value>>& AddedBenchFields() {
  static auto* const fields = new std::map<std::string, std::map<std::string, Attrs::Value>>;
  return *fields;
}

// Random weights of one layer by name; the same for every device and in any order of reading.
class RandomLayer {
 public:
  explicit RandomLayer(const MixerCase& c)
      : case_(c), usual_(0.15f * std::sqrt(float{kModelDim} / static_cast<float>(c.d_model))) {}
  absl::StatusOr<TensorView> operator()(const std::string& leaf, const Shape& shape) {
    std::vector<float>& values = tensors_[leaf];
    if (values.empty()) {
      const auto named = case_.weights.find(leaf);
      const auto [mean, deviation] =
          named == case_.weights.end() ? std::pair(0.0f, usual_) : named->second;
      const std::string text = leaf + "7";
      std::seed_seq seed(text.begin(), text.end());
      std::mt19937 random(seed);
      std::normal_distribution<float> normal(mean, deviation);
      for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(normal(random));
    }
    return TensorView{values.data(), DType::kF32, shape};
  }

 private:
  const MixerCase& case_;
  const float usual_;  // deviation of the weights
  std::map<std::string, std::vector<float>> tensors_;
};

// The config of a case, with the other parts of its spec.
struct CaseConfig {
  explicit CaseConfig(const MixerCase& c)
      : c(c),
        config(ReadFields(c.type, MakeFields(c.model), MakeFields(c.section, "section."),
                          c.d_model)) {}
  StateSpec spec(DType kv_dtype, Device device) const {
    return {.config = *config,
            .d_model = c.d_model,
            .kv_dtype = kv_dtype,
            .device = device,
            .slot_shares = c.slot_shares};
  }
  const MixerCase& c;
  std::shared_ptr<MixerConfig> config;
};

}  // namespace

MixerCases::MixerCases(std::vector<MixerCase> cases) {
  for (MixerCase& c : cases) AddedCases().push_back(std::move(c));
}
const std::vector<MixerCase>& MixerCases::All() { return AddedCases(); }

std::vector<MixerParam> MixerCases::OnDevices() {
  std::vector<MixerParam> params;
  for (const MixerCase& c : All()) {
    for (Device device : TestDevices()) {
      MixerCase on_device = c;
      on_device.device = device;
      params.push_back({std::make_shared<const MixerCase>(std::move(on_device))});
    }
  }
  return params;
}
std::string MixerCaseName(const testing::TestParamInfo<MixerParam>& info) {
  const MixerCase& c = *info.param.mixer_case;
  return c.type + "_" + c.name + "_" + DTypeName(c.kv_dtype) + "_" + DTypeName(c.compute_dtype) +
         "_" + DeviceName(c.device);
}

Attrs MakeFields(const Fields& fields, const std::string& path) {
  Attrs attrs(path);
  for (const auto& [name, value] : fields) attrs.Set(name, value);
  return attrs;
}

std::shared_ptr<MixerConfig> ReadFields(const std::string& type, const Attrs& model,
                                        const Attrs& section, int64_t d_model) {
  std::shared_ptr<MixerConfig> config = FindMixer(type)->config();
  ovq::kernels::ReadFields(model, section, d_model, *config);
  return config;
}

MixerCase BenchCase(std::string_view type) {
  constexpr int64_t kSlots = 2048;
  MixerCase c = {
      .type = std::string(type),
      .name = "benchmark",
      .model = {{"num_attention_heads", 6}, {"head_dim", 128}, {"sliding_window", 128}},
      .section = {{"chunk_size", 128}, {"max_centroids", kSlots}, {"codebook_size", kSlots}},
      .weights = {{"self_attn.beta", {8.0f, 0.04f}}},
      .slot_cap = kSlots,
      .kv_dtype = DType::kBF16,
      .compute_dtype = DType::kBF16,
      .d_model = 768};
  for (const auto& [field, value] : AddedBenchFields()[c.type]) c.section[field] = value;
  return c;
}
BenchFields::BenchFields(const std::string& type, Fields section) {
  AddedBenchFields().emplace(type, std::move(section));
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixer(const MixerCase& c, DeviceContext& context,
                                                         WeightCount* count) {
  const CaseConfig fields(c);
  const WeightSource source = RandomWeights(c);
  WeightReader weights(source, c.compute_dtype, context);
  auto mixer = FindMixer(c.type)->make({.layer = 3,
                                        .state = fields.spec(c.kv_dtype, context.device()),
                                        .weights = weights,
                                        .compute_dtype = c.compute_dtype,
                                        .context = context});
  if (count != nullptr) *count = weights.count();
  return mixer;
}

absl::StatusOr<MixerState> MakeState(const MixerCase& c, DType kv_dtype, Device device) {
  return FindMixer(c.type)->state(CaseConfig(c).spec(kv_dtype, device));
}

WeightSource RandomWeights(const MixerCase& c) {
  const auto layer = std::make_shared<RandomLayer>(c);
  return [layer](const std::string& leaf, const Shape& shape) { return (*layer)(leaf, shape); };
}

std::vector<float> RandomRows(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(n) * kModelDim);
  for (float& value : rows) value = normal(random);
  return rows;
}

MixerInstance::MixerInstance(const MixerCase& c, Device device, int n_threads, int64_t max_tokens)
    : slot_cap_(c.slot_cap),
      compute_dtype_(c.compute_dtype),
      context_(MakeContext(device, n_threads)) {
  context_->BindThread();
  auto made = MakeMixer(c, *context_);
  Check(made.ok(), made.ok() ? "" : std::string(made.status().message()).c_str());
  mixer_ = *std::move(made);
  const MixerState& state = mixer_->state();
  const auto parts = static_cast<size_t>(state.growth.parts());
  int64_t slots = 0;
  if (state.growth.exists()) {
    growths_ = {state.growth};
    where_.growth = 0;
    slots = state.growth.capped() ? 0 : max_tokens;
    for (int part = 0; state.growth.capped() && part < state.growth.parts(); ++part) {
      slots = std::max(slots, state.growth.HeadSlotCap(slot_cap_, part));
    }
  }
  where_.blocks_offset = state.fixed.bytes();
  where_.block_stride = state.block.bytes() / parts;
  const size_t part_bytes = static_cast<size_t>(NumBlocks(slots)) * where_.block_stride;
  where_.head_stride = parts > 1 ? part_bytes : state.head_bytes();
  initial_.resize(state.fixed.bytes() + parts * part_bytes);
  for (size_t i = 0; i < state.fixed.list().size(); ++i) {
    const auto& image = state.fixed.list()[i].initial;
    if (!image) continue;
    std::ranges::copy(*image, initial_.begin() + static_cast<std::ptrdiff_t>(
                                                     state.fixed.offset(static_cast<int>(i))));
  }
}

std::vector<float> MixerInstance::RunBatch(const std::vector<Rows>& sequences) {
  std::vector<float> x;
  std::vector<int32_t> token_begin{0}, caps;
  std::vector<int64_t> start;
  std::vector<std::byte*> state;
  for (const Rows& rows : sequences) {
    x.insert(x.end(), rows.x.begin(), rows.x.end());
    token_begin.push_back(token_begin.back() + static_cast<int32_t>(rows.count()));
    caps.push_back(static_cast<int32_t>(slot_cap_));
    start.push_back(rows.start);
    state.push_back(rows.session);
  }
  const Shape shape = {token_begin.back(), kModelDim};
  const std::vector<BF16> narrow = Rounded(x);
  const Buffer x_device = compute_dtype_ == DType::kBF16
                              ? context_->Upload(narrow.data(), narrow.size() * sizeof(BF16))
                              : context_->Upload(x.data(), x.size() * sizeof(float));
  std::vector<float> y(x.size());
  const Buffer y_device = context_->Upload(y.data(), y.size() * sizeof(float));
  const StagedBatch staged = StageBatch(
      *context_, {.token_begin = token_begin, .start_pos = start, .slot_cap = caps, .state = state},
      growths_);
  ScratchScope scope(*context_);
  BatchTensors tensors(scope);
  mixer_->Forward({*context_, staged.seqs, where_, tensors},
                  TensorView{x_device.as<void>(), compute_dtype_, shape},
                  {.data = y_device.as<void>(), .dtype = DType::kF32, .shape = shape});
  context_->CopyToHost(y.data(), y_device.as<float>(), y.size() * sizeof(float));
  return y;
}

std::vector<float> MixerInstance::Run(MixerSession& session, const std::vector<float>& x,
                                      std::vector<int64_t> cuts, int64_t start) {
  cuts.push_back(static_cast<int64_t>(x.size()) / kModelDim);
  std::vector<float> y;
  int64_t begin = 0;
  for (int64_t end : cuts) {
    if (end == begin) continue;
    const std::vector<float> part =
        RunBatch({{session.base(), start + begin, test::Rows(x, begin, end)}});
    y.insert(y.end(), part.begin(), part.end());
    begin = end;
  }
  return y;
}

}  // namespace ovq::kernels::test

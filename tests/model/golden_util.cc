#include "tests/model/golden_util.h"

#include <algorithm>

#include "tests/test_util.h"

namespace ovq::test {

Golden LoadGolden(const std::string& name) {
  Golden golden;
  golden.folder = std::string(OVQ_GOLDEN_DIR) + "/native/" + name;
  const auto json = nlohmann::json::parse(ReadBytes(golden.folder + "/tokens.json"));
  golden.sequences = json.at("sequences").get<std::vector<std::vector<int32_t>>>();
  golden.override_centroids = json.value("max_centroids_override", int64_t{0});
  return golden;
}

std::unique_ptr<DeviceContext> BoundContext(Device device, int n_threads) {
  std::unique_ptr<DeviceContext> context = MakeContext(device, n_threads);
  context->BindThread();
  return context;
}

std::unique_ptr<LanguageModel> LoadModel(const std::string& folder, DeviceContext& context,
                                         DType compute, DType state) {
  ModelOptions options;
  options.compute_dtype = compute;
  options.state_dtype = state;
  auto model = LanguageModel::Load(folder, options, context);
  Check(model.ok(), Message(model.status()).c_str());
  return *std::move(model);
}

Session::Session(const LanguageModel& model, std::vector<int32_t> tokens, int64_t max_centroids)
    : model_(model),
      tokens_(std::move(tokens)),
      max_centroids_(max_centroids),
      memory_(model.layout().virtual_bytes()) {}

void Session::AddTo(StepBatch& batch, int64_t n) {
  const auto piece = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(position_),
                                                               static_cast<size_t>(n));
  batch.Add(piece, position_, static_cast<int32_t>(max_centroids_), memory_.base(),
            static_cast<int>(n));
}

const float* Session::TakeLogits(const float* rows, int64_t n) {
  const float* end = rows + n * model_.config().vocab_size;
  logits_.insert(logits_.end(), rows, end);
  position_ += n;
  return end;
}

void Session::Feed(DeviceContext& context, int64_t n) {
  StepBatch batch;
  AddTo(batch, n);
  std::vector<float> logits(static_cast<size_t>(n * model_.config().vocab_size));
  model_.Forward(batch, context, {logits.data(), DType::kF32, {n, model_.config().vocab_size}});
  TakeLogits(logits.data(), n);
}

std::string Session::StateBytes() const {
  std::string bytes;
  for (const StateExtent& extent : model_.layout().extents_at(position_, max_centroids_)) {
    bytes.append(reinterpret_cast<const char*>(memory_.base()) + extent.offset, extent.bytes);
  }
  return bytes;
}

void FeedTogether(const LanguageModel& model, DeviceContext& context,
                  const std::vector<Session*>& sessions, const std::vector<int64_t>& pieces) {
  const int64_t vocab = model.config().vocab_size;
  StepBatch batch;
  for (;;) {
    batch.Clear();
    std::vector<int64_t> rows(sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      rows[i] = std::min(pieces[i], sessions[i]->remaining());
      if (rows[i] > 0) sessions[i]->AddTo(batch, rows[i]);
    }
    if (batch.n_rows() == 0) return;
    std::vector<float> logits(static_cast<size_t>(batch.n_rows() * vocab));
    model.Forward(batch, context, {logits.data(), DType::kF32, {batch.n_rows(), vocab}});
    const float* next = logits.data();
    for (size_t i = 0; i < sessions.size(); ++i) next = sessions[i]->TakeLogits(next, rows[i]);
  }
}

}  // namespace ovq::test

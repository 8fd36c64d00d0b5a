#include "tests/model/golden_util.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/folders.h"
#include "tests/model/new_session.h"
#include "tests/test_util.h"

namespace ovq::model::test {

Golden LoadGolden(const std::string& name) {
  Golden golden;
  golden.folder =
      absl::StrCat(GoldenFolder(), "/", name.find('/') == std::string::npos ? "native/" : "", name);
  const auto json = nlohmann::json::parse(ReadBytes(golden.folder + "/tokens.json"));
  for (const auto& sequence : json.at("sequences")) {
    const size_t i = golden.sequences.size();
    const bool named = sequence.is_object();
    const std::string tensor = named ? sequence.at("name").get<std::string>() : "";
    golden.whole.push_back(named ? "prefill." + tensor : absl::StrCat("logits.", i));
    golden.by_token.push_back(named ? "decode." + tensor : golden.whole.back());
    golden.sequences.push_back(
        (named ? sequence.at("tokens") : sequence).get<std::vector<int32_t>>());
  }
  Check(!golden.sequences.empty(), "a golden model has sequences");
  golden.override_slot_cap = json.value("max_centroids_override", int64_t{0});
  return golden;
}

std::unique_ptr<kernels::DeviceContext> BoundContext(kernels::Device device, int n_threads) {
  std::unique_ptr<kernels::DeviceContext> context = kernels::test::MakeContext(device, n_threads);
  context->BindThread();
  return context;
}

std::unique_ptr<LanguageModel> LoadModel(const std::string& folder, kernels::DeviceContext& context,
                                         kernels::DType compute, kernels::DType state) {
  ModelOptions options = kSmallSessions;
  options.compute_dtype = compute;
  options.state_dtype = state;
  auto model = LanguageModel::Load(folder, options, context);
  Check(model.ok(), Message(model.status()).c_str());
  return *std::move(model);
}

kernels::Buffer NewState(const LanguageModel& model, kernels::DeviceContext& context) {
  const std::vector<std::byte> bytes = NewSession(model.layout());
  return context.Upload(bytes.data(), bytes.size());
}

std::vector<float> Forward(const LanguageModel& model, kernels::DeviceContext& context,
                           const Batch& batch) {
  kernels::ScratchScope scope(context);
  const kernels::TensorView rows = model.Forward(batch, context, scope);
  std::vector<float> logits(batch.logits_indices.size() *
                            static_cast<size_t>(model.config().vocab_size));
  context.CopyToHost(logits.data(), rows.data, logits.size() * sizeof(float));
  return logits;
}

Session::Session(const LanguageModel& model, kernels::DeviceContext& context,
                 std::vector<int32_t> tokens, int64_t slot_cap)
    : model_(model),
      context_(context),
      tokens_(std::move(tokens)),
      slot_cap_(slot_cap),
      memory_(NewState(model, context)) {}

void Session::AddTo(Batch& batch, int64_t n) {
  const auto part = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(position_),
                                                              static_cast<size_t>(n));
  batch.Add(part, position_, static_cast<int32_t>(slot_cap_), memory_.as<std::byte>(),
            static_cast<int>(n));
}

const float* Session::StoreLogits(const float* rows, int64_t n) {
  const float* end = rows + n * model_.config().vocab_size;
  logits_.insert(logits_.end(), rows, end);
  position_ += n;
  return end;
}

void Session::Feed(int64_t n) {
  Batch batch;
  AddTo(batch, n);
  StoreLogits(Forward(model_, context_, batch).data(), n);
}

void Session::ContinueFrom(const Session& other) {
  position_ = other.position_;
  const std::string bytes = other.LiveBytes();
  size_t at = 0;
  for (const kernels::StateExtent& extent : model_.layout().live_extents_at(position_, slot_cap_)) {
    Check(at + extent.bytes <= bytes.size(), "both states have the same bytes");
    context_.CopyFromHost(memory_.as<std::byte>() + extent.offset, bytes.data() + at, extent.bytes);
    at += extent.bytes;
  }
  Check(at == bytes.size(), "both states have the same bytes");
}

std::string Session::StateBytes() const {
  return ReadExtents(model_.layout().extents_at(position_, slot_cap_));
}
std::string Session::LiveBytes() const {
  return ReadExtents(model_.layout().live_extents_at(position_, slot_cap_));
}

std::string Session::ReadExtents(const std::vector<kernels::StateExtent>& extents) const {
  std::string bytes;
  for (const kernels::StateExtent& extent : extents) {
    std::string part(extent.bytes, '\0');
    context_.CopyToHost(part.data(), memory_.as<std::byte>() + extent.offset, extent.bytes);
    bytes += part;
  }
  return bytes;
}

void FeedTogether(const LanguageModel& model, kernels::DeviceContext& context,
                  const std::vector<Session*>& sessions, const std::vector<int64_t>& lengths) {
  Batch batch;
  for (;;) {
    batch = {};
    std::vector<int64_t> rows(sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      rows[i] = std::min(lengths[i], sessions[i]->remaining());
      if (rows[i] > 0) sessions[i]->AddTo(batch, rows[i]);
    }
    if (batch.n_tokens() == 0) return;
    const std::vector<float> logits = Forward(model, context, batch);
    const float* next = logits.data();
    for (size_t i = 0; i < sessions.size(); ++i) next = sessions[i]->StoreLogits(next, rows[i]);
  }
}

}  // namespace ovq::model::test

#include "tests/server/engine/fake_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/mixers/ovq/ovq.h"
#include "model/tokenizers/byte_alphabet.h"
#include "tests/model/model_test_util.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

constexpr int kChunkLen = 4;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b * 0x9e3779b97f4a7c15ull)) + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

kernels::MixerState Fields(std::vector<kernels::StateField> fixed, kernels::Growth growth,
                           int row_words) {
  kernels::MixerState state{
      .fixed = kernels::StateFields(std::move(fixed)), .growth = growth, .block = {}};
  if (growth.exists()) {
    state.block = kernels::StateFields(
        {{"rows", kernels::DType::kU32, kernels::Shape{kernels::kBlockSlots, row_words}}});
  }
  return state;
}

std::vector<kernels::MixerState> Layers(bool full_attention, int row_words) {
  std::vector<kernels::MixerState> layers;
  layers.push_back(Fields({{"hash", kernels::DType::kU32, kernels::Shape{2}},
                           {"position", kernels::DType::kU32, kernels::Shape{2}}},
                          kernels::GrowsByChunk(kChunkLen, kDefaultSlotCap), row_words));
  layers.push_back(Fields({{"window", kernels::DType::kF32, kernels::Shape{1500, row_words / 16}}},
                          {}, row_words));
  layers.back().name = "fake_window";
  if (full_attention) layers.push_back(Fields({}, kernels::GrowsByToken(), row_words));
  return layers;
}

// A vocabulary of all bytes, kEos and kMarker.
nlohmann::json BytesWithEnd() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    model::AppendByteChar(static_cast<uint8_t>(byte), character);
    vocab[character] = byte;
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
          {"added_tokens",
           {{{"id", kEos}, {"content", "<|end|>"}, {"special", true}},
            {{"id", kMarker}, {"content", "<tool_call>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

uint64_t Consume(const model::StateLayout& layout, int32_t token, int64_t position, int32_t cap,
                 std::byte* state, int row_words) {
  struct Head {
    uint64_t hash;
    uint64_t position;
  } head;
  static_assert(sizeof(uint64_t) == 8);
  std::byte* fixed = state + layout.layer(0).fixed_offset;
  std::memcpy(&head.hash, fixed, 8);
  std::memcpy(&head.position, fixed + 64, 8);
  Check(head.position == static_cast<uint64_t>(position), "a state's rows come in order");
  head.hash = Mix(head.hash, static_cast<uint64_t>(token) + 1);
  // Runs after the token, as a mixer's chunk update would.
  const auto touch = [&](int layer, int64_t slot) {
    auto* row = reinterpret_cast<uint32_t*>(
                    state + layout.layer(layer).FieldOffset(layout.mixers()[layer], 0,
                                                            slot / kernels::kBlockSlots)) +
                slot % kernels::kBlockSlots * row_words;
    head.hash = Mix(head.hash, row[3]);
    row[3] ^= static_cast<uint32_t>(head.hash);
  };
  const int64_t live = layout.LiveSlotsAt(position + 1, cap);
  if (live > 0) {
    touch(0, live - 1);
    touch(0, static_cast<int64_t>(head.hash % static_cast<uint64_t>(live)));
  }
  if (layout.has_unbounded()) touch(2, position);
  auto* window = reinterpret_cast<float*>(state + layout.layer(1).fixed_offset);
  window[position % 1500] = static_cast<float>(token);
  ++head.position;
  std::memcpy(fixed, &head.hash, 8);
  std::memcpy(fixed + 64, &head.position, 8);
  return head.hash;
}

}  // namespace

void IterationGate::CloseAt(int64_t step) {
  std::lock_guard lock(mutex_);
  closed_at_ = step;
  cv_.notify_all();
}
void IterationGate::AwaitEntered(int64_t step) {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return steps_ >= step; });
}
void IterationGate::Open() {
  std::lock_guard lock(mutex_);
  closed_at_ = INT64_MAX;
  cv_.notify_all();
}
int64_t IterationGate::steps() const {
  std::lock_guard lock(mutex_);
  return steps_;
}
void IterationGate::Enter() {
  std::unique_lock lock(mutex_);
  ++steps_;
  cv_.notify_all();
  cv_.wait(lock, [&] { return steps_ < closed_at_; });
}

FakeModel::FakeModel(Options options)
    : row_words_(options.row_words), weight_bytes_(options.weight_bytes) {
  std::vector<bool> variants = {options.full_attention};
  if (options.exact_too) variants.push_back(true);
  for (const bool full_attention : variants) {
    layouts_.push_back(std::make_unique<model::StateLayout>(
        Layers(full_attention, options.row_words),
        model::StateLimits{.max_slot_cap = options.max_slot_cap,
                           .max_unbounded_tokens = options.max_unbounded_tokens}));
  }
  if (!options.with_text) return;
  model::ModelConfig config;
  config.vocab_size = kVocab;
  config.tokenizer = model::TokenizerKind::kBytes;
  config.eos_token_ids = {kEos};
  const model::test::TempFolder folder;
  if (!options.chat_template.empty()) {
    config.tokenizer = model::TokenizerKind::kBpe;
    folder.Write("tokenizer.json", BytesWithEnd().dump());
    folder.Write("chat_template.jinja", options.chat_template);
    chat_format_ = jinja::ChatFormat::Load(folder.path()).value();
  }
  absl::StatusOr<std::unique_ptr<model::Tokenizer>> tokenizer =
      model::Tokenizer::Load(folder.path(), config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  tokenizer_ = *std::move(tokenizer);
}

EngineModel FakeModel::Make() {
  EngineModel model;
  model.vocab_size = kVocab;
  model.eos_token_ids = {kEos};
  model.full_kv_bytes_per_token = 1000;
  model.weight_bytes = weight_bytes_;
  model.tokenizer = tokenizer_.get();
  model.SetChatFormat(chat_format_.get());
  model.vocabulary = model.MakeVocabulary();
  for (const auto& layout : layouts_) {
    const auto forward = [this, &layout](const model::Batch& batch, kernels::DeviceContext&,
                                         kernels::ScratchScope& scope) {
      gate_.Enter();
      const size_t rows = batch.logits_indices.size();
      const kernels::TensorView logits{scope.Allocate<float>(rows * kVocab), kernels::DType::kF32,
                                       kernels::Shape{static_cast<int64_t>(rows), kVocab}};
      Forward(*layout, batch, logits);
      return logits;
    };
    model.variants.push_back({.name = model.variants.empty() ? "model" : "exact",
                              .fingerprint = std::string(64, 'f'),
                              .layer_types = {"ovq_attention", "sliding_attention"},
                              .default_slot_cap = kDefaultSlotCap,
                              .layout = layout.get(),
                              .exact_tokens = [](int64_t cap) { return cap; },
                              .forward = forward,
                              // A token may change any slot.
                              .undo_extents =
                                  [&layout](const kernels::TokenRange& tokens) {
                                    return layout->live_extents_at(tokens.end, tokens.slot_cap);
                                  },
                              .can_undo_suffix = [](const kernels::TokenRange&) { return false; }});
  }
  return model;
}

void FakeModel::Script(int64_t position, const std::string& bytes) {
  for (char c : bytes) Script(position++, static_cast<uint8_t>(c));
}

int FakeModel::max_rows() const {
  std::lock_guard lock(mutex_);
  return max_rows_;
}

void FakeModel::FillLogits(uint64_t hash, int64_t next_position, float* logits) const {
  for (int64_t v = 0; v < kVocab; ++v) {
    logits[v] = static_cast<float>(Mix(hash, static_cast<uint64_t>(v)) >> 40) * 0x1p-21f;  // < 8
  }
  // Only a script draws the end of sequence.
  logits[kEos] = -30.0f;
  const auto scripted = script_.find(next_position);
  if (scripted != script_.end()) logits[scripted->second] = 100.0f;
}

void FakeModel::Forward(const model::StateLayout& layout, const model::Batch& batch,
                        kernels::TensorView logits) {
  size_t wanted = 0;
  float* out = logits.as<float>();
  for (int i = 0; i < batch.n_seqs(); ++i) {
    for (int row = batch.token_begin[i]; row < batch.token_begin[i + 1]; ++row) {
      const int64_t position = batch.start_pos[i] + row - batch.token_begin[i];
      const uint64_t hash = Consume(layout, batch.token_ids[row], position, batch.slot_cap[i],
                                    batch.state[i], row_words_);
      if (wanted == batch.logits_indices.size() || batch.logits_indices[wanted] != row) continue;
      float* const row_out = out + static_cast<int64_t>(wanted) * kVocab;
      FillLogits(hash, position + 1, row_out);
      if (batch.token_ids[row] == spoilt_.first) row_out[kVocab - 1] = spoilt_.second;
      ++wanted;
    }
  }
  Check(wanted == batch.logits_indices.size(), "every wanted row is one of the batch");
  std::lock_guard lock(mutex_);
  max_rows_ = std::max(max_rows_, batch.n_tokens());
}

std::optional<StreamEvent> Pop(TokenStream& stream) {
  while (!stream.closed()) {
    if (std::optional<StreamEvent> event = stream.TryPop()) return event;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return std::nullopt;
}

Answers ReadAll(TokenStream& stream, int n) {
  Answers answers;
  answers.of.resize(static_cast<size_t>(n));
  while (std::optional<StreamEvent> event = Pop(stream)) {
    if (event->started) answers.started = *event->started;
    if (event->chunk) {
      Answer& answer = answers.of[static_cast<size_t>(event->chunk->index)];
      EXPECT_FALSE(answer.finished) << "a chunk after Finished";
      answer.tokens.insert(answer.tokens.end(), event->chunk->token_ids.begin(),
                           event->chunk->token_ids.end());
      answer.logprobs.insert(answer.logprobs.end(), event->chunk->logprobs.begin(),
                             event->chunk->logprobs.end());
      answer.top.insert(answer.top.end(), event->chunk->top.begin(), event->chunk->top.end());
      answer.text += event->chunk->text;
    }
    if (event->finished) {
      Answer& answer = answers.of[static_cast<size_t>(event->finished->index)];
      EXPECT_FALSE(answer.finished) << "two Finished";
      answer.finished = *event->finished;
    }
  }
  answers.status = stream.status();
  return answers;
}

TestEngine::TestEngine(EngineOptions options, FakeModel::Options model, EngineEvents events,
                       const std::function<void(FakeModel&)>& setup)
    : model_(model) {
  if (setup) setup(model_);
  engine_ = std::make_unique<EngineThread>(
      model_.Make(), options, kernels::test::MakeContext(kernels::Device::kCpu), std::move(events));
}

std::shared_ptr<TokenStream> TestEngine::Start(GenerateRequest request, size_t capacity) {
  auto stream = std::make_shared<TokenStream>(capacity);
  const absl::Status status = engine_->engine().Submit(std::move(request), stream);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) stream->Close(status);
  return stream;
}

Answers TestEngine::Run(GenerateRequest request) {
  const int n = request.n;
  return ReadAll(*Start(std::move(request)), n);
}

SessionInfo TestEngine::NewSession(SessionOptions options) {
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine_->engine().sessions().Create(std::move(options), receiver.callback());
  const absl::StatusOr<SessionInfo> info = receiver.Wait();
  EXPECT_TRUE(info.ok()) << info.status();
  return info.ok() ? *info : SessionInfo{};
}

void TestEngine::AwaitBoundary() {
  // The engine thread answers this call.
  EXPECT_TRUE(absl::IsNotFound(engine_->engine().sessions().Export("none", "").status()));
}

EngineStats TestEngine::SettledStats() {
  // The first call waits for a boundary, the second for the statistics of that boundary.
  AwaitBoundary();
  AwaitBoundary();
  return engine_->engine().Stats();
}

std::vector<int32_t> SomeTokens(int64_t n, uint32_t seed) {
  std::vector<int32_t> tokens;
  uint64_t state = seed;
  for (int64_t i = 0; i < n; ++i) {
    state = Mix(state, 7);
    tokens.push_back(static_cast<int32_t>(state % 256));
  }
  return tokens;
}

GenerateRequest SampleRequest(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

GenerateRequest Turn(const std::string& id, std::vector<int32_t> prompt, int64_t max_tokens,
                     uint64_t seed) {
  GenerateRequest request = SampleRequest(std::move(prompt), max_tokens, seed);
  request.session_id = id;
  return request;
}

std::vector<std::byte> State(TestEngine& engine, const std::string& id) {
  const absl::StatusOr<std::vector<std::byte>> state = CopyState(*engine, id, "");
  EXPECT_TRUE(state.ok()) << state.status();
  return state.ok() ? *state : std::vector<std::byte>{};
}

SessionImage Joined(SessionImage file, const SessionImage& delta) {
  if (delta.length() > file.length()) file.pending = delta.pending;
  file.unread = delta.length() - (file.pending ? 1 : 0) - file.position;
  file.tokens = delta.tokens;
  file.turn_ends = delta.turn_ends;
  file.unfinished = delta.unfinished;
  return file;
}

}  // namespace ovq::engine::test

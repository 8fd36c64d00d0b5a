// A model for the engine's tests, and an engine on it. Its logits follow from a hash of all
// consumed tokens that only the session's state holds, so a missing token, a wrong state pointer or
// an uncommitted page changes the answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/state_layout.h"
#include "model/tokenizer.h"
#include "server/engine/engine.h"
#include "tests/server/engine/copy_state.h"

namespace ovq::engine::test {

inline constexpr int64_t kVocab = 258;
inline constexpr int32_t kEos = 257;
inline constexpr int32_t kMarker = 256;
inline constexpr int32_t kDefaultSlotCap = 256;

// Stops the engine thread inside chosen iterations. Open at first.
class IterationGate {
 public:
  void CloseAt(int64_t step);  // the engine waits inside this iteration (from 1) and later ones
  void AwaitEntered(int64_t step);  // waits until this iteration has begun
  void Open();
  int64_t steps() const;  // begun so far

  void Enter();  // called by the model

 private:
  mutable std::mutex mutex_;
  std::condition_variable cv_;
  int64_t steps_ = 0;
  int64_t closed_at_ = INT64_MAX;
};

struct FakeModelOptions {
  bool with_text = true;  // a byte tokenizer: token id = byte
  std::string chat_template =
      {};  // if not empty, the tokenizer writes kEos as <|end|>, kMarker as <tool_call>
  bool full_attention = false;  // adds a layer that grows by a row per token
  bool exact_too = false;       // adds a variant "exact" with that layer
  int64_t max_slot_cap = 4096;
  int64_t max_unbounded_tokens = 4096;
  // Words per slot: with 16, a block of 64 slots is one page. The fixed part grows in proportion.
  int row_words = 16;
  size_t weight_bytes = 0;  // iteration times are predicted from them; 0: no bound
};

class FakeModel {
 public:
  using Options = FakeModelOptions;
  explicit FakeModel(Options options = {});

  EngineModel Make();
  const model::StateLayout& layout(size_t variant = 0) const { return *layouts_[variant]; }
  IterationGate& gate() { return gate_; }
  // Sets the token drawn at this position, whatever the sampling parameters. Call before the first
  // iteration.
  void Script(int64_t position, int32_t token) { script_[position] = token; }
  void Script(int64_t position, const std::string& bytes);
  // Sets the last logit after this token. Call before the first iteration.
  void Spoil(int32_t token, float logit) { spoilt_ = {token, logit}; }
  // The most tokens or wanted logits in one batch.
  int max_rows() const;

 private:
  void Forward(const model::StateLayout& layout, const model::Batch& batch,
               kernels::TensorView logits);
  void FillLogits(uint64_t hash, int64_t next_position, float* logits) const;

  const int row_words_;
  const size_t weight_bytes_;
  std::vector<std::unique_ptr<model::StateLayout>> layouts_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<jinja::ChatFormat> chat_format_;
  std::map<int64_t, int32_t> script_;
  std::pair<int32_t, float> spoilt_ = {-1, 0};
  IterationGate gate_;
  mutable std::mutex mutex_;
  int max_rows_ = 0;
};

// The events of one completion on a stream.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<model::TokenLogprob>> top;
  std::string text;
  std::optional<Finished> finished;
};
struct Answers {
  std::optional<Started> started;
  std::vector<Answer> of;  // [n]
  absl::Status status;
};
// Waits for the next event. Unset if the stream is closed and empty.
std::optional<StreamEvent> Pop(TokenStream& stream);
Answers ReadAll(TokenStream& stream, int n = 1);

// An engine on a fake model.
class TestEngine {
 public:
  explicit TestEngine(EngineOptions options = {}, FakeModel::Options model = {},
                      EngineEvents events = {}, const std::function<void(FakeModel&)>& setup = {});
  Engine* operator->() { return &engine_->engine(); }
  Engine& operator*() { return engine_->engine(); }
  FakeModel& model() { return model_; }
  void Destroy() { engine_.reset(); }

  Answers Run(GenerateRequest request);  // to its end
  std::shared_ptr<TokenStream> Start(GenerateRequest request, size_t capacity = 256);
  SessionInfo NewSession(SessionOptions options = {});
  void AwaitBoundary();        // of an iteration
  EngineStats SettledStats();  // at an iteration boundary after everything seen so far

 private:
  FakeModel model_;
  std::unique_ptr<EngineThread> engine_;
};

// Waits for one value.
template <class T>
class Receiver {
 public:
  std::function<void(T)> callback() {
    return [this](T value) {
      std::lock_guard lock(mutex_);
      value_ = std::make_unique<T>(std::move(value));
      cv_.notify_all();
    };
  }
  T Wait() {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return value_ != nullptr; });
    return *value_;
  }
  bool has_value() {
    std::lock_guard lock(mutex_);
    return value_ != nullptr;
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  std::unique_ptr<T> value_;
};

std::vector<int32_t> SomeTokens(int64_t n, uint32_t seed);  // below 256
GenerateRequest SampleRequest(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed = 1);
GenerateRequest Turn(const std::string& id, std::vector<int32_t> prompt, int64_t max_tokens,
                     uint64_t seed = 1);
std::vector<std::byte> State(TestEngine& engine, const std::string& id);
// Joins a file and a delta that extends it, as clients do.
SessionImage Joined(SessionImage file, const SessionImage& delta);

}  // namespace ovq::engine::test

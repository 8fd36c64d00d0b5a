// Small models with known logits (tests/golden/native, kvm, fla and published), and sessions of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/common/device.h"
#include "model/language_model.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {

struct Golden {
  std::string folder;
  std::vector<std::vector<int32_t>> sequences;
  // Names in expected.safetensors of each sequence's logits, if fed at once and token by token.
  std::vector<std::string> whole, by_token;
  int64_t override_slot_cap = 0;  // 0: the file has no logits_override
};
// name: "sw-ovq" for native/sw-ovq, or with its folder, "kvm/ovq-swa".
Golden LoadGolden(const std::string& name);

// A context bound to the calling thread.
std::unique_ptr<kernels::DeviceContext> BoundContext(kernels::Device device, int n_threads = 1);
// Limits that keep a session's address range small, because NewState writes all of it.
inline const ModelOptions kSmallSessions = [] {
  ModelOptions options;
  options.limits = {.max_slot_cap = 4096, .max_unbounded_tokens = 4096};
  return options;
}();
// Loads a model with small sessions; ends the process on error.
std::unique_ptr<LanguageModel> LoadModel(const std::string& folder, kernels::DeviceContext& context,
                                         kernels::DType compute = kernels::DType::kF32,
                                         kernels::DType state = kernels::DType::kF32);

// A new session's whole address range in device memory.
kernels::Buffer NewState(const LanguageModel& model, kernels::DeviceContext& context);

// All logits of one batch, on the host.
std::vector<float> Forward(const LanguageModel& model, kernels::DeviceContext& context,
                           const Batch& batch);

// A sequence that is fed to a model batch by batch, with its logits.
class Session {
 public:
  Session(const LanguageModel& model, kernels::DeviceContext& context, std::vector<int32_t> tokens,
          int64_t slot_cap);

  int64_t position() const { return position_; }
  int64_t remaining() const { return static_cast<int64_t>(tokens_.size()) - position_; }
  // Appends the next n tokens to a batch, all logits wanted.
  void AddTo(Batch& batch, int64_t n);
  // Stores the logits [n, vocab] of this session's tokens; returns the end of them.
  const float* StoreLogits(const float* rows, int64_t n);
  // Sets a new session to the state of another one, possibly of another device.
  void ContinueFrom(const Session& other);
  // Feeds the next n tokens in a batch of their own.
  void Feed(int64_t n);

  const std::vector<float>& logits() const { return logits_; }  // [position, vocab]
  std::string StateBytes() const;  // live bytes and the rest of their pages, in address order
  std::string LiveBytes() const;   // live bytes only, equal on every device

 private:
  const LanguageModel& model_;
  kernels::DeviceContext& context_;
  std::vector<int32_t> tokens_;
  int64_t slot_cap_;
  int64_t position_ = 0;
  kernels::Buffer memory_;
  std::vector<float> logits_;

  std::string ReadExtents(const std::vector<kernels::StateExtent>& extents) const;
};

// Feeds sessions together, lengths[i] tokens of session i in each batch, until all are done.
void FeedTogether(const LanguageModel& model, kernels::DeviceContext& context,
                  const std::vector<Session*>& sessions, const std::vector<int64_t>& lengths);

}  // namespace ovq::model::test

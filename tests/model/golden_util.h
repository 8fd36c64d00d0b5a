// Small models with known logits: tests/golden/native and tests/golden/kvm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/common/device.h"
#include "model/language_model.h"
#include "tests/model/model_test_util.h"

namespace ovq::test {

struct Golden {
  std::string folder;
  std::vector<std::vector<int32_t>> sequences;
  // Of each sequence, in expected.safetensors: when it is read at once, and token by token.
  std::vector<std::string> whole, by_token;
  int64_t override_slot_cap = 0;  // 0: no logits_override in the file
};
// name: "sw-ovq" of native, or with its folder, "kvm/ovq-swa".
Golden LoadGolden(const std::string& name);

// A context whose threads the calling thread's kernels use.
std::unique_ptr<DeviceContext> BoundContext(Device device, int n_threads = 1);
// Keeps a session's whole address range small, which NewState writes.
inline const ModelOptions kSmallSessions = [] {
  ModelOptions options;
  options.limits = {.max_slot_cap = 4096, .max_unbounded_tokens = 4096};
  return options;
}();
// With small sessions.
std::unique_ptr<LanguageModel> LoadModel(const std::string& folder, DeviceContext& context,
                                         DType compute = DType::kF32, DType state = DType::kF32);

// A new session's whole address range in the device's memory.
Buffer NewState(const LanguageModel& model, DeviceContext& context);

// All logits of one step, on the host.
std::vector<float> Forward(const LanguageModel& model, DeviceContext& context, const Batch& batch);

// One sequence that is fed to a model step by step, its logits kept.
class Session {
 public:
  Session(const LanguageModel& model, DeviceContext& context, std::vector<int32_t> tokens,
          int64_t slot_cap);

  int64_t position() const { return position_; }
  int64_t remaining() const { return static_cast<int64_t>(tokens_.size()) - position_; }
  // Appends the next n tokens to a batch, all logits wanted.
  void AddTo(Batch& batch, int64_t n);
  // Takes this session's rows of a step's logits, and returns what follows them.
  const float* StoreLogits(const float* rows, int64_t n);
  // In place of a new session: goes on where another one stands, maybe of another device.
  void ContinueFrom(const Session& other);
  // The next n tokens as a step of their own.
  void Feed(int64_t n);

  const std::vector<float>& logits() const { return logits_; }  // [position, vocab]
  std::string StateBytes() const;  // live bytes and the rest of their pages, end to end
  std::string LiveBytes() const;   // which are the same on every device

 private:
  const LanguageModel& model_;
  DeviceContext& context_;
  std::vector<int32_t> tokens_;
  int64_t slot_cap_;
  int64_t position_ = 0;
  Buffer memory_;
  std::vector<float> logits_;

  std::string ReadExtents(const std::vector<StateExtent>& extents) const;
};

// Feeds whole sessions together, lengths[i] tokens of session i a step, until all are done.
void FeedTogether(const LanguageModel& model, DeviceContext& context,
                  const std::vector<Session*>& sessions, const std::vector<int64_t>& lengths);

}  // namespace ovq::test

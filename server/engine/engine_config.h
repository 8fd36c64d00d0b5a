// What an engine is made with: its model, its options, and who is told of its work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "kernels/common/device.h"
#include "model/state_layout.h"
#include "model/step_batch.h"
#include "model/tokenizer.h"
#include "server/engine/events.h"
#include "server/engine/quota.h"

namespace ovq {

// What the engine needs of a model; tests pass a function of their own.
struct EngineModel {
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t default_slot_cap = 0;  // 0: the model has no growing dictionary
  size_t full_kv_bytes_per_token = 0;
  const StateLayout* layout = nullptr;
  const Tokenizer* tokenizer = nullptr;  // may be null: no text, no stop strings
  // LanguageModel::Forward.
  std::function<TensorView(const StepBatch&, DeviceContext&, ScratchScope&)> forward;
};

struct EngineOptions {
  size_t state_memory_bytes = size_t{1} << 30;
  int max_sessions = 1024;         // live sessions, one-shot requests included
  int max_queue = 1024;            // requests waiting for admission
  int32_t max_batch_tokens = 512;  // rows of one step
  int32_t max_slot_cap = 65536;    // the largest cap a session may ask for
  int64_t max_prompt_tokens = 1 << 20;
  absl::Duration session_ttl = absl::Minutes(30);  // idle sessions are deleted after this
  uint64_t seed = 0;  // of the seeds and ids the server draws; 0: from the system
  std::shared_ptr<TenantQuotas> quotas;  // null: an engine's own, without limits
  Clock clock;
};

struct EngineConfig {
  EngineModel model;
  EngineOptions options;
  EngineEvents events;
};

// How many sessions with this cap fit at once: exact, as each reserves the most it can hold.
inline int SessionSlots(const StateLayout& layout, int32_t slot_cap, size_t state_memory_bytes,
                        int max_sessions) {
  const size_t each = std::max<size_t>(layout.bytes_cap(slot_cap), 1);
  return static_cast<int>(std::min(state_memory_bytes / each, static_cast<size_t>(max_sessions)));
}

}  // namespace ovq

// What all RPCs share: the engine and its surroundings, and what one call brings with it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "model/tokenizer.h"
#include "server/auth.h"
#include "server/engine.h"
#include "server/grpc_strand.h"
#include "server/metrics.h"

namespace ovq {

// What GetModelInfo tells beside the engine's own numbers.
struct ModelDescription {
  std::string name;
  std::string fingerprint;
  int64_t hidden_size = 0;
  std::vector<std::string> layer_types;
  int64_t parameters = 0;
  std::optional<int32_t> bos_token_id;
  std::string device;
  std::string compute_dtype;
  std::string state_dtype;
};

// A stream that stays open between its turns must be told when the server drains.
class DrainListener {
 public:
  virtual ~DrainListener() = default;
  virtual void OnDrain() = 0;  // must not block
};

// Any thread. Outlives every call.
class ServiceContext {
 public:
  // tenants: null where no tokens are asked for.
  ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics,
                 const TenantRegistry* tenants = nullptr);

  Engine& engine;
  const ModelDescription description;
  Metrics& metrics;
  const Authenticator auth;
  const absl::Time started = absl::Now();
  const Tokenizer* tokenizer() const { return engine.model().tokenizer; }

  WorkQueue writers;   // turns tokens into messages; its work never waits
  WorkQueue blocking;  // parses, tokenizes, and waits for the engine thread

  // After Drain, streams without a running turn end, and calls that bring work are refused.
  void Drain();
  absl::Status CheckServing() const;  // Unavailable while draining
  bool draining() const { return draining_; }
  void AddDrainListener(DrainListener* listener);
  void RemoveDrainListener(DrainListener* listener);

 private:
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  std::set<DrainListener*> listeners_ ABSL_GUARDED_BY(mutex_);
};

// Time and counting of one RPC.
class CallRecord {
 public:
  CallRecord(ServiceContext& services, Method method, grpc::CallbackServerContext* context)
      : services_(services), method_(method), context_(context) {}
  absl::Time arrival() const { return arrival_; }
  absl::Time deadline() const;
  // Counts the call and gives its status for the wire, with trailing metadata `retry-after-ms`
  // where the status knows one. Call once, at the end.
  grpc::Status End(const absl::Status& status);

 private:
  ServiceContext& services_;
  const Method method_;
  grpc::CallbackServerContext* const context_;
  const absl::Time arrival_ = absl::Now();
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ovq

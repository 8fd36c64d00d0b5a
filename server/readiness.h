// Defines Readiness, which decides and publishes whether the server accepts calls.
#pragma once

#include <mutex>

#include "server/http/http_api.h"
#include "server/rpc/grpc_server.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

// Publishes readiness to health checks and metrics: the server is ready unless it hangs or drains.
// Thread-safe.
class Readiness {
 public:
  // `http` is null if there is no HTTP front.
  Readiness(Metrics& metrics, GrpcServer& server, HttpApi* http)
      : metrics_(metrics), server_(server), http_(http) {
    Publish();
  }
  void SetHanging(bool hanging) {
    std::lock_guard lock(mutex_);
    hanging_ = hanging;
    Publish();
  }
  void SetDraining() {
    std::lock_guard lock(mutex_);
    draining_ = true;
    Publish();
  }

 private:
  void Publish() {
    const bool ready = !hanging_ && !draining_;
    metrics_.ready.Set(ready);
    metrics_.draining.Set(draining_);
    server_.SetServing(ready);
    if (http_ != nullptr) http_->SetReady(ready);
  }

  Metrics& metrics_;
  GrpcServer& server_;
  HttpApi* const http_;
  std::mutex mutex_;  // guards the members below
  bool hanging_ = false, draining_ = false;
};

}  // namespace ovq::server

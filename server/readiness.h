// Whether calls are welcome.
#pragma once

#include <mutex>

#include "server/rpc/grpc_server.h"
#include "server/telemetry/metrics.h"

namespace ovq {

// What health checks, balancers and the metric of readiness hear. Any thread.
class Readiness {
 public:
  Readiness(Metrics& metrics, GrpcServer& server) : metrics_(metrics), server_(server) { Tell(); }
  void SetHanging(bool hanging) {
    std::lock_guard lock(mutex_);
    hanging_ = hanging;
    Tell();
  }
  void SetDraining() {
    std::lock_guard lock(mutex_);
    draining_ = true;
    Tell();
  }

 private:
  void Tell() {
    const bool ready = !hanging_ && !draining_;
    metrics_.SetReady(ready);
    metrics_.SetDraining(draining_);
    server_.SetServing(ready);
  }

  Metrics& metrics_;
  GrpcServer& server_;
  std::mutex mutex_;  // guards the rest
  bool hanging_ = false, draining_ = false;
};

}  // namespace ovq

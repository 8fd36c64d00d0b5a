// Sends the gRPC library's own messages to the log.
#pragma once

#include <grpc/support/log.h>

#include <atomic>

#include "server/telemetry/log.h"

namespace ovq::server {

// Only one object of the class at a time. While it exists, the library's messages go to `log`,
// under the rate of their kind; the environment variable GRPC_VERBOSITY selects their level.
class GrpcLog {
 public:
  explicit GrpcLog(Log& log) {
    target_ = &log;
    gpr_set_log_function(&Write);
  }
  ~GrpcLog() {
    gpr_set_log_function(nullptr);
    target_ = nullptr;
  }
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;

 private:
  static void Write(gpr_log_func_args* args) {
    Log* const log = target_;
    if (log == nullptr) return;
    // The library's errors are mostly faults of peers: a failed handshake, a broken frame.
    const LogLevel level = args->severity == GPR_LOG_SEVERITY_DEBUG  ? LogLevel::kDebug
                           : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                     : LogLevel::kWarning;
    log->Write(level, LogKind::kGrpc, args->message,
               {{"file", args->file}, {"line", int64_t{args->line}}});
  }

  static inline std::atomic<Log*> target_ = nullptr;
};

}  // namespace ovq::server

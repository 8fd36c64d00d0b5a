// The gRPC library's own messages as lines of the log.
#pragma once

#include "server/telemetry/log.h"

namespace ovq {

// One at a time in a program. What it logs while this is there goes to `log`, in full lines and
// under a rate; environment variable GRPC_VERBOSITY says how much that is.
class GrpcLog {
 public:
  explicit GrpcLog(Log& log);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace ovq

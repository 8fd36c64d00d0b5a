// Sends the gRPC library's own messages to the log.
#pragma once

#include "server/telemetry/log.h"

namespace ovq::server {

// Only one object of the class at a time. While it exists, the library's messages go to `log`,
// under the rate of their kind; the environment variable GRPC_VERBOSITY selects their level.
class GrpcLog {
 public:
  explicit GrpcLog(Log& log);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace ovq::server

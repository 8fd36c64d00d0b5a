#include "server/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>

namespace ovq::server {
namespace {

std::atomic<Log*> target = nullptr;

LogLevel ToLogLevel(gpr_log_severity severity) {
  if (severity == GPR_LOG_SEVERITY_DEBUG) return LogLevel::kDebug;
  // The library's errors are mostly faults of peers: a failed handshake, a broken frame.
  return severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo : LogLevel::kWarning;
}

void Write(gpr_log_func_args* args) {
  Log* const log = target;
  if (log == nullptr) return;
  log->Write(ToLogLevel(args->severity), LogKind::kGrpc, args->message,
             {{"file", args->file}, {"line", int64_t{args->line}}});
}

}  // namespace

GrpcLog::GrpcLog(Log& log) {
  target = &log;
  gpr_set_log_function(&Write);
}

GrpcLog::~GrpcLog() {
  gpr_set_log_function(nullptr);
  target = nullptr;
}

}  // namespace ovq::server

#include "server/rpc/grpc_call.h"

#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"
#include "server/rpc/grpc_codec.h"

namespace ovq::server {

GrpcCall::GrpcCall(ServiceContext& services, const char* label,
                   grpc::CallbackServerContext* context)
    : context_(context),
      deadline_(Clock().ToSteady(absl::FromChrono(context->deadline()))),
      record_(services, label, *this) {}

std::vector<std::string> GrpcCall::Values(const char* name) const {
  const auto [begin, end] = context_->client_metadata().equal_range(name);
  std::vector<std::string> values;
  for (auto entry = begin; entry != end; ++entry) {
    values.emplace_back(entry->second.data(), entry->second.size());
  }
  return values;
}

grpc::Status GrpcCall::End(const absl::Status& status) {
  const absl::Status seen = record_.Seen(status);
  if (const std::optional<absl::Duration> wait = engine::GetErrorFacts(seen).retry_after) {
    context_->AddTrailingMetadata("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(*wait)));
  }
  for (const auto& [name, value] : record_.AnswerHeaders()) {
    context_->AddTrailingMetadata(name, value);
  }
  record_.services().metrics.CallFinished(record_.method(), seen.code(), record_.age());
  record_.End(seen);
  return ToGrpcStatus(seen);
}

}  // namespace ovq::server

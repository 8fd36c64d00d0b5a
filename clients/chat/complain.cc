#include "clients/chat/complain.h"

#include "absl/strings/str_cat.h"
#include "clients/common/program.h"

namespace ovq::clients {

std::string FindRequestId(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("x-request-id");
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

int Complain(std::string_view message) { return Fail(kChat, kExitError, message); }

int Complain(const Connection& connection, const grpc::Status& status,
             const std::string& request_id) {
  const std::string request = request_id.empty() ? "" : absl::StrCat(" (request ", request_id, ")");
  return Complain(absl::StrCat(Explained(status, connection.options).ToString(), request));
}

}  // namespace ovq::clients

#include "server/calls/rpc_labels.h"

#include <google/protobuf/descriptor.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "ovq/v1/admin.pb.h"
#include "ovq/v1/inference.pb.h"

namespace ovq::server {
namespace {

// Labels by the full names of the RPCs.
const std::map<std::string, std::string>& LabelTable() {
  static const auto* const table = [] {
    auto* labels = new std::map<std::string, std::string>;
    const auto add = [labels](const google::protobuf::FileDescriptor& file, const char* prefix) {
      for (int i = 0; i < file.service_count(); ++i) {
        const google::protobuf::ServiceDescriptor& service = *file.service(i);
        for (int k = 0; k < service.method_count(); ++k) {
          const google::protobuf::MethodDescriptor& method = *service.method(k);
          labels->emplace(method.full_name(), absl::StrCat(prefix, method.name()));
        }
      }
    };
    add(*v1::GenerateRequest::descriptor()->file(), "");
    add(*v1::ServerStatus::descriptor()->file(), "Admin");
    return labels;
  }();
  return *table;
}

}  // namespace

std::vector<const char*> RpcLabels() {
  std::vector<const char*> labels;
  for (const auto& [name, label] : LabelTable()) labels.push_back(label.c_str());
  return labels;
}

const char* RpcLabel(const std::string& service, const std::string& method) {
  const std::string name = absl::StrCat(service, ".", method);
  const auto found = LabelTable().find(name);
  Check(found != LabelTable().end(), name.c_str());
  return found->second.c_str();
}

}  // namespace ovq::server

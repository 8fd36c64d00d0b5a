// Names of the RPCs of ovq.v1 in metrics, logs and spans, derived from the proto's descriptors.
#pragma once

#include <string>
#include <vector>

namespace ovq::server {

// The labels of all RPCs. An RPC's label is its name, with "Admin" before it for those of
// admin.proto.
std::vector<const char*> RpcLabels();

// The label of one RPC, by its service's full name and its own name. Lives as long as the program.
// Ends the program if the proto has no such RPC: services are registered at the start.
const char* RpcLabel(const std::string& service, const std::string& method);

}  // namespace ovq::server

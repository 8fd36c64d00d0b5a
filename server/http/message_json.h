// Protobuf messages as JSON.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace ovq::server {

// The message in protobuf's JSON mapping.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace ovq::server

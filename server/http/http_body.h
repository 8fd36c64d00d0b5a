// Bodies of requests: text of a bearable size, shape and cost before anything is made of it.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "server/http/http_call.h"

namespace ovq {

// The body as a JSON object; none at all is an empty one. InvalidArgument for another content type
// (a browser sends JSON to a strange server only if that allows it, which this one never does),
// bytes that are no UTF-8, what is no JSON object, or nested more than 32 levels deep.
// ResourceExhausted where the host's memory has no room for what will be made of it.
absl::StatusOr<nlohmann::json> JsonBody(HttpCall& call);
// The same as a message, in protobuf's JSON mapping, which also names what it does not know.
absl::Status MessageBody(HttpCall& call, google::protobuf::Message& message);

}  // namespace ovq

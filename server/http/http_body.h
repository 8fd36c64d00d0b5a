// Parses bodies of requests, after checks of their size, nesting and memory cost.
#pragma once

#include <google/protobuf/message.h>

#include "absl/status/statusor.h"
#include "server/http/http_call.h"
#include "server/http/json.h"

namespace ovq::server {

// The body as a JSON object; an empty body is an empty object. InvalidArgument for another content
// type (browsers send JSON across origins only to servers that allow it, and this one never does),
// bytes that are not UTF-8, text that is not a JSON object, or nesting beyond 32 levels.
// ResourceExhausted if the request memory has no room for what the body turns into.
absl::StatusOr<Json> JsonBody(HttpCall& call);
// The body as a message, in protobuf's JSON mapping. Same errors; unknown fields are one, too.
absl::Status MessageBody(HttpCall& call, google::protobuf::Message& message);

}  // namespace ovq::server

// Maps requests of Anthropic's /v1/messages to a GenerateRequest. docs/http.md lists every field.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/apis/openai_fields.h"

namespace ovq::server {

// `model`: names of the served model. counts: the request asks for the number of its tokens alone,
// so it has no length and no sampling.
absl::StatusOr<OpenAiRequest> ReadMessagesRequest(const Json& body, const ModelNames& model,
                                                  bool counts);

}  // namespace ovq::server

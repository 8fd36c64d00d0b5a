// Maps requests of OpenAI's completions and chat completions, with vLLM's additional fields, to a
// GenerateRequest. docs/http.md lists every field.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/apis/openai_fields.h"

namespace ovq::server {

// `model`: names of the served model.
absl::StatusOr<OpenAiRequest> ReadCompletion(const Json& body, const ModelNames& model);
absl::StatusOr<OpenAiRequest> ReadChat(const Json& body, const ModelNames& model);

}  // namespace ovq::server

// Reads the fields that requests of several of OpenAI's and Anthropic's calls share, with vLLM's
// additional ones. docs/http.md lists every field. Errors go to the BodyFields.
#pragma once

#include <optional>
#include <string>

#include "ovq/v1/inference.pb.h"
#include "server/http/body_fields.h"
#include "server/http/openai_request.h"

namespace ovq::server {

// Reads `model`: NotFound with code model_not_found for another than the served one.
void ReadModel(BodyFields& fields, const std::string& model);
void ReadSampling(BodyFields& fields, v1::GenerateRequest& to);  // and when to stop
void ReadStopTexts(BodyFields& fields, const char* name, v1::StopConditions& to);
void ReadStream(BodyFields& fields, OpenAiRequest& to);
void ReadVariant(BodyFields& fields, v1::GenerateRequest& to);  // memory, max_centroids
void ReadFormat(BodyFields& fields);                            // response_format
void RefuseVllmFields(BodyFields& fields);
// Accepts the fields that change no answer of this server: ids of users, hints for caches, options
// of OpenAI's service.
void SkipHints(BodyFields& fields);

}  // namespace ovq::server

// Reads the fields by which OpenAI's, vLLM's, llama.cpp's and Anthropic's APIs ask for a form of
// the answer.
#pragma once

#include "server/apis/openai_fields.h"
#include "server/http/body_fields.h"

namespace ovq::server {

// Reads all of them that completions and chats have: `response_format`, `structured_outputs`,
// `guided_*`, `grammar` and `json_schema`, at most one of which may ask for something.
void ReadConstraintFields(BodyFields& fields, OpenAiRequest& to);

// Reads a format: {"type": "text"}, {"type": "json_object"}, or of type "json_schema", whose schema
// stands in an object "json_schema" or, where `flat`, beside the type.
void ReadFormat(BodyFields& fields, const char* name, bool flat, OpenAiRequest& to);

}  // namespace ovq::server

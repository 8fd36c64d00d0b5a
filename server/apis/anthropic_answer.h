// Answers to Anthropic's /v1/messages, whole or as a stream of events.
#pragma once

#include <memory>
#include <string>

#include "server/apis/generation_call.h"

namespace ovq::server {

std::unique_ptr<AnswerWriter> MakeMessageAnswer(bool streams, const std::string& model);

}  // namespace ovq::server

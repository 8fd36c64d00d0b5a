// The handlers of the HTTP routes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_call.h"

namespace ovq::server {

// Handlers are called once the caller is known, on threads that may block but for the quick
// lane's. Each answers its call, now or later, or returns the error that it gets.
using PathWords = std::vector<std::string>;  // in place of {} in the route's pattern
using HttpHandler = absl::Status(const HttpCallPtr& call, const PathWords& words);

// OpenAI's and vLLM's API.
HttpHandler ServeModels, ServeCompletions, ServeChat, ServeResponses, ServeResponse,
    ServeResponseInput, ServeResponseDelete, ServeTokenize, ServeDetokenize;
// Anthropic's.
HttpHandler ServeMessages, ServeCountTokens;
// /ovq/v1: messages as JSON.
HttpHandler ServeInfo, ServeStatus, ServeSessions, ServeCreate, ServeSession, ServeDelete,
    ServeFork, ServeRewind;
HttpHandler ServeGenerate;  // within a session, or without one

}  // namespace ovq::server

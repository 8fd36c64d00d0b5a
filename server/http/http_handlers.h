// Handlers of HTTP requests, called once the caller is known, on threads that may block but for the
// quick lane's. Each answers its call, now or later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http/http_call.h"

namespace ovq {

// words: the path's words in place of {} in the route's pattern.
using HttpHandler = void (*)(const std::shared_ptr<HttpCall>& call,
                             const std::vector<std::string>& words);

// --- OpenAI's and vLLM's API ---
void ServeModels(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeCompletions(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeChat(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponses(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponse(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponseDelete(const std::shared_ptr<HttpCall>& call,
                         const std::vector<std::string>& words);
void ServeTokenize(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeDetokenize(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);

// --- /ovq/v1: messages as JSON ---
void ServeInfo(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeStatus(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeSessions(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeCreate(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeSession(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeDelete(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeFork(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeRewind(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
// Within a session, or without one.
void ServeGenerate(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);

}  // namespace ovq

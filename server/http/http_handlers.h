// The handlers of HTTP requests, after the caller is known. Each answers its call, now or later, on
// threads that may block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http/http_call.h"

namespace ovq {

// words: what the path has in place of {} in the route's pattern.
using HttpHandler = void (*)(const std::shared_ptr<HttpCall>& call,
                             const std::vector<std::string>& words);

// --- OpenAI's, and vLLM's ---
void ServeModels(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeCompletions(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeChat(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponses(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponse(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeResponseDelete(const std::shared_ptr<HttpCall>& call,
                         const std::vector<std::string>& words);
void ServeTokenize(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeDetokenize(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);

// --- messages of ovq.v1 as JSON ---
void ServeInfo(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeStatus(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeSessions(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeCreate(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeSession(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeDelete(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeFork(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
void ServeRewind(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);
// In a session, or without one.
void ServeGenerate(const std::shared_ptr<HttpCall>& call, const std::vector<std::string>& words);

}  // namespace ovq

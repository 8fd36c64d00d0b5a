// Handlers of the unary calls of ovq.v1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "ovq/v1/admin.pb.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/service_context.h"

namespace ovq::server {

// Called once, on any thread. The record of the call lives until then.
template <class Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;

// A handler runs on a thread that may block, but in kQuick.
template <class Request, class Response>
using UnaryHandler = std::function<void(CallRecord&, const Request&, const UnaryDone<Response>&)>;

// The threads for a method's calls. Calls of kQuick never wait behind those of kWork, so their
// handlers must be cheap and must not wait.
enum class Lane : uint8_t { kWork, kQuick };
inline constexpr size_t kMaxQuickBytes = size_t{64} << 10;  // limit on messages of kQuick

// --- InferenceService ---
absl::StatusOr<v1::ModelInfo> GetModelInfo(CallRecord& call,
                                           const v1::GetModelInfoRequest& message);
void Score(CallRecord& call, const v1::ScoreRequest& message,
           const UnaryDone<v1::ScoreResponse>& done);
absl::StatusOr<v1::ApplyTemplateResponse> ApplyTemplate(CallRecord& call,
                                                        const v1::ApplyTemplateRequest& message);
absl::StatusOr<v1::TokenizeResponse> Tokenize(CallRecord& call, const v1::TokenizeRequest& message);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(CallRecord& call,
                                                  const v1::DetokenizeRequest& message);

// --- SessionService ---
void CreateSession(CallRecord& call, const v1::CreateSessionRequest& message,
                   const UnaryDone<v1::Session>& done);
void ForkSession(CallRecord& call, const v1::ForkSessionRequest& message,
                 const UnaryDone<v1::ForkSessionResponse>& done);
void RewindSession(CallRecord& call, const v1::RewindSessionRequest& message,
                   const UnaryDone<v1::RewindSessionResponse>& done);
void GetSession(CallRecord& call, const v1::GetSessionRequest& message,
                const UnaryDone<v1::Session>& done);
absl::StatusOr<v1::ListSessionsResponse> ListSessions(CallRecord& call,
                                                      const v1::ListSessionsRequest& message);
absl::StatusOr<v1::DeleteSessionResponse> DeleteSession(CallRecord& call,
                                                        const v1::DeleteSessionRequest& message);

// --- for the admin service: the status without its tenants ---
v1::ServerStatus GetServerStatus(const ServiceContext& services);

}  // namespace ovq::server

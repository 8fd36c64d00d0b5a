// Handlers of the unary calls of ovq.v1.
#pragma once

#include "absl/status/statusor.h"
#include "ovq/v1/admin.pb.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/unary.h"

namespace ovq::server {

// --- InferenceService ---
absl::StatusOr<v1::ModelInfo> GetModelInfo(const UnaryInfo& info,
                                           const v1::GetModelInfoRequest& message);
void Score(const UnaryInfo& info, const v1::ScoreRequest& message,
           const UnaryDone<v1::ScoreResponse>& done);
absl::StatusOr<v1::ApplyTemplateResponse> ApplyTemplate(const UnaryInfo& info,
                                                        const v1::ApplyTemplateRequest& message);
absl::StatusOr<v1::TokenizeResponse> Tokenize(const UnaryInfo& info,
                                              const v1::TokenizeRequest& message);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const UnaryInfo& info,
                                                  const v1::DetokenizeRequest& message);

// --- SessionService ---
void CreateSession(const UnaryInfo& info, const v1::CreateSessionRequest& message,
                   const UnaryDone<v1::Session>& done);
void ForkSession(const UnaryInfo& info, const v1::ForkSessionRequest& message,
                 const UnaryDone<v1::ForkSessionResponse>& done);
void RewindSession(const UnaryInfo& info, const v1::RewindSessionRequest& message,
                   const UnaryDone<v1::RewindSessionResponse>& done);
void GetSession(const UnaryInfo& info, const v1::GetSessionRequest& message,
                const UnaryDone<v1::Session>& done);
absl::StatusOr<v1::ListSessionsResponse> ListSessions(const UnaryInfo& info,
                                                      const v1::ListSessionsRequest& message);
absl::StatusOr<v1::DeleteSessionResponse> DeleteSession(const UnaryInfo& info,
                                                        const v1::DeleteSessionRequest& message);

// --- for the admin service: the status without its tenants ---
v1::ServerStatus GetServerStatus(const ServiceContext& services);

}  // namespace ovq::server

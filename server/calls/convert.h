// Between the messages of ovq.v1 and the engine's structs. Requests are only mapped: a value that
// the engine's type cannot hold arrives as one that is in no range, and the engine checks it with
// all others (server/engine/validate.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/access/call_context.h"
#include "server/calls/conversation.h"
#include "server/engine/engine.h"
#include "server/engine/engine_api.h"
#include "server/engine/error_facts.h"

namespace ovq {

// --- requests to structs ---

// Encode of the model's tokenizer, which it has, for a text of a bearable length (CheckTextBytes).
// Its error may quote the text: the log gets the field's name alone.
absl::StatusOr<std::vector<int32_t>> Encode(const Engine& engine, const std::string& text,
                                            bool add_bos, const std::string& field);
// Token ids of a prompt; absent gives none. At the start the model's beginning-of-sequence token
// goes before text. Errors: text without a tokenizer, a prompt beyond the limit, those of NewText;
// `prefix` begins the name of the field.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::Prompt& prompt,
                                                  const std::string& prefix,
                                                  const PromptPlace& place, const Engine& engine);
// A prompt and how much of it may be cached; errors are those of PromptTokens.
absl::Status SetPrompt(const v1::Prompt& prompt, const PromptPlace& place, const Engine& engine,
                       CallRequest& to);
// What a v1::GenerateRequest and a v1::ChatTurn have in common: prompt, sampling, stop, output.
// Lists that are too long are refused before they are copied, as is a prompt that PromptTokens
// refuses.
template <class Message>
absl::Status SetGeneration(const Message& from, const PromptPlace& place, const Engine& engine,
                           GenerateRequest& to);
std::vector<int32_t> TokenIds(const google::protobuf::RepeatedField<uint32_t>& ids);
absl::Duration ToDuration(const google::protobuf::Duration& from);
// `ovq-session` carries a key that the client chose when it made the session; a balancer
// in front keeps what has the same key on one server. The key is the beginning of the session's id,
// "KEY.RANDOM", so that whoever has the id has the key. InvalidArgument for what cannot begin an
// id.
absl::Status ParseSessionKey(const CallContext& context, SessionOptions& to);
// What a v1::CreateSessionRequest and a v1::ChatOpen have in common, and the key of the session.
template <class Message>
absl::StatusOr<SessionOptions> ToSessionOptions(const Message& from, const CallContext& context);

ForkOptions ToForkOptions(const v1::ForkSessionRequest& from, const std::string& tenant,
                          const std::string& client);

// --- structs to answers ---
void Fill(const Started& from, v1::Started& to);
void Fill(const TokenChunk& from, v1::TokenChunk& to);
void Fill(const Finished& from, v1::Finished& to);
void Fill(const SessionInfo& from, v1::Session& to);
void Fill(absl::Duration from, google::protobuf::Duration& to);
void Fill(const ErrorFacts& from, v1::ErrorInfo& to);
v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens,
                                  const std::vector<TokenScore>& rows);

}  // namespace ovq

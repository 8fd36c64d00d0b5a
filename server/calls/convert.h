// Converts between the messages of ovq.v1 and the engine's structs. Requests are mapped without
// checks of their values: one that the engine's type cannot hold becomes a value outside every
// range, and the engine checks all of them (server/engine/common/validate.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/access/call_context.h"
#include "server/calls/conversation.h"
#include "server/calls/service_context.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/engine.h"

namespace ovq::server {

// --- requests to structs ---

// Encodes a text whose length CheckTextBytes accepts. The model must have a tokenizer. The error
// may quote the text, so the log gets only the field's name.
absl::StatusOr<std::vector<int32_t>> Encode(const engine::Engine& engine, const std::string& text,
                                            bool add_bos, const std::string& field);
struct PromptIds {
  std::vector<int32_t> ids = {};
  PromptText text = {};  // of a conversation
};
// Token ids of a prompt; none for an absent prompt. At the start of a session text gets the model's
// beginning-of-sequence token. Errors: text without a tokenizer, a prompt beyond the limit, and
// those of NewText. `prefix` stands before the name of the field.
absl::StatusOr<PromptIds> PromptTokens(const v1::Prompt& prompt, const std::string& prefix,
                                       const PromptPlace& place, const engine::Engine& engine);
// Sets the prompt's tokens and what of them may be cached, and returns PromptText::begun. Errors:
// see PromptTokens.
absl::StatusOr<std::string> SetPrompt(const v1::Prompt& prompt, const PromptPlace& place,
                                      const engine::Engine& engine, engine::CallRequest& to);
// Sets the parts that v1::GenerateRequest and v1::ChatTurn share: prompt, sampling, stop, output;
// `to` has its client. Compiles the constraint of the answer, so it may take a second. Refuses
// lists that are too long before it copies them. Other errors: see PromptTokens, ReadAnswerTools,
// FrameAnswer and ConstraintCache::Get.
template <class Message>
absl::Status SetGeneration(const Message& from, const PromptPlace& place, ServiceContext& services,
                           engine::GenerateRequest& to);
std::vector<int32_t> TokenIds(const google::protobuf::RepeatedField<uint32_t>& ids);
absl::Duration ToDuration(const google::protobuf::Duration& from);
inline constexpr const char* kSessionHeader = "ovq-session";
// A key for balancers to route by, made of any text: the text itself if it is a key, else its hash.
std::string MakeSessionKey(const std::string& text);
// The call's key: `ovq-session` as it is, else one made of the first header that other clients and
// proxies name their conversation by. Unset without any.
std::optional<std::string> FindSessionKey(const CallContext& context);
// Reads the key that the client chooses for a new session, by which a balancer sends calls with the
// same key to one server. The session's id is then "KEY.RANDOM", so clients with the id have the
// key. InvalidArgument for text in `ovq-session` that cannot begin an id.
absl::Status ParseSessionKey(const CallContext& context, engine::SessionOptions& to);
// Options from the fields that v1::CreateSessionRequest and v1::ChatOpen share, and the session
// key.
template <class Message>
absl::StatusOr<engine::SessionOptions> ToSessionOptions(const Message& from,
                                                        const CallContext& context);

// --- structs to answers ---
void Fill(const engine::Started& from, v1::Started& to);
void Fill(const engine::TokenChunk& from, v1::TokenChunk& to);
void Fill(const engine::Finished& from, v1::Finished& to);
void Fill(const engine::SessionInfo& from, v1::Session& to);
void Fill(absl::Duration from, google::protobuf::Duration& to);
void Fill(const engine::ErrorFacts& from, v1::ErrorInfo& to);
v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens,
                                  const std::vector<model::TokenScore>& rows);

}  // namespace ovq::server

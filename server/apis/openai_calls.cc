// /v1/models and /v1/chat/completions of OpenAI's API, /tokenize and /detokenize of vLLM's.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "model/token_text.h"
#include "server/apis/chat_answer.h"
#include "server/apis/chat_messages.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/apis/openai_answer.h"
#include "server/apis/openai_fields.h"
#include "server/apis/openai_request.h"
#include "server/calls/convert.h"
#include "server/calls/handlers.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

const ModelNames& Names(const HttpCallPtr& call) { return call->services().description.names; }

Json ModelObject(const ServiceContext& services, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(services.started)},
          {"owned_by", "ovq-server"},
          {"root", services.description.names.front()}};  // vLLM's, which its own clients ask for
}

// The answer of /tokenize, written as it comes and counted: a body's text can be millions of
// tokens. ResourceExhausted: no more memory for this client.
absl::StatusOr<std::string> TokenList(HttpCall& call, const v1::TokenizeResponse& tokens,
                                      bool with_texts) {
  constexpr size_t kHeldAtATime = size_t{64} << 10;
  const engine::Engine& engine = call.services().engine;
  std::string ids, texts;
  size_t held = 0;
  for (const uint32_t id : tokens.token_ids()) {
    absl::StrAppend(&ids, ids.empty() ? "" : ",", id);
    if (with_texts) {
      absl::StrAppend(
          &texts, texts.empty() ? "" : ",",
          Dump(model::ShowToken(engine.model().tokenizer, static_cast<int32_t>(id)).text));
    }
    if (ids.size() + texts.size() < held) continue;
    held += kHeldAtATime;
    RETURN_IF_ERROR(ReserveBytes(call.record().memory(), 2 * kHeldAtATime));  // with the whole
  }
  return absl::StrCat("{\"count\":", tokens.token_ids_size(),
                      ",\"max_model_len\":", engine.options().max_prompt_tokens, ",\"tokens\":[",
                      ids, "],\"token_strs\":", with_texts ? absl::StrCat("[", texts, "]") : "null",
                      "}");
}

}  // namespace

absl::Status ServeModels(const HttpCallPtr& call, const PathWords& words) {
  if (!words.empty()) {
    RETURN_IF_ERROR(CheckModel(words.front(), Names(call)));
    call->Reply(200, Dump(ModelObject(call->services(), words.front())));
    return absl::OkStatus();
  }
  Json list = Json::array();
  for (const std::string& name : Names(call)) list.push_back(ModelObject(call->services(), name));
  call->Reply(200, Dump({{"object", "list"}, {"data", list}}));
  return absl::OkStatus();
}

absl::Status ServeChat(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(OpenAiRequest request, ReadChat(body, Names(call)));
  call->SetSessionKey(request.session_key);
  const auto in_theirs = [fields = CallerNames(request)](const absl::Status& status) {
    return ToOpenAiError(status, fields);
  };
  const v1::GenerateRequest message = request.message;
  auto writer =
      MakeChatAnswer(std::move(request), Names(call).front(),
                     call->services().engine.model().tokenizer, absl::ToUnixSeconds(absl::Now()));
  StartGeneration(call, std::move(writer), message, {.translate_error = in_theirs});
  return absl::OkStatus();
}

absl::Status ServeTokenize(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  BodyFields fields(body);
  ReadModel(fields, Names(call));
  const std::optional<std::string> text = fields.Text("prompt");
  const Json* const messages = fields.Any("messages");
  v1::GenerateRequest chat;
  v1::Conversation& conversation = *chat.mutable_prompt()->mutable_conversation();
  if (messages != nullptr) ReadMessages(fields, "messages", *messages, conversation);
  ReadTools(fields, /*flat=*/false, chat);
  ReadTemplateArgs(fields, "", conversation);
  const bool opens = fields.Bool("add_generation_prompt").value_or(true);
  conversation.set_add_generation_prompt(opens);
  const bool special = fields.Bool("add_special_tokens").value_or(messages == nullptr);
  const bool with_texts = fields.Bool("return_token_strs").value_or(false);
  if ((text.has_value()) == (messages != nullptr)) {
    fields.Fail(engine::BadField("prompt", "it or messages", text ? "both" : "neither"));
  }
  RETURN_IF_ERROR(fields.Finish());

  v1::TokenizeRequest request;
  request.set_add_bos(special);
  if (text) request.set_text(*text);
  if (messages != nullptr) {
    v1::ApplyTemplateRequest apply;
    *apply.mutable_conversation() = std::move(conversation);
    absl::StatusOr<v1::ApplyTemplateResponse> applied = ApplyTemplate(call->record(), apply);
    if (!applied.ok()) return ToOpenAiError(applied.status(), {.api = OpenAiApi::kChat});
    request.set_text(std::move(*applied->mutable_text()));
  }
  const absl::StatusOr<v1::TokenizeResponse> tokens = Tokenize(call->record(), request);
  if (!tokens.ok()) return RenameField(tokens.status(), "text", text ? "prompt" : "messages");
  ASSIGN_OR_RETURN(std::string list, TokenList(*call, *tokens, with_texts));
  call->Reply(200, std::move(list));
  return absl::OkStatus();
}

absl::Status ServeDetokenize(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  BodyFields fields(body);
  ReadModel(fields, Names(call));
  v1::DetokenizeRequest request;
  for (const uint32_t id : fields.Ids("tokens")) request.add_token_ids(id);
  RETURN_IF_ERROR(fields.Finish());
  const absl::StatusOr<v1::DetokenizeResponse> text = Detokenize(call->record(), request);
  if (!text.ok()) return RenameField(text.status(), "token_ids", "tokens");
  call->Reply(200, Dump({{"prompt", text->text()}}));
  return absl::OkStatus();
}

}  // namespace ovq::server

// /v1/models, /v1/completions and /v1/chat/completions of OpenAI's API, /tokenize and /detokenize
// of vLLM's.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/calls/convert.h"
#include "server/calls/handlers.h"
#include "server/http/generation_call.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"
#include "server/http/openai_answer.h"
#include "server/http/openai_request.h"

namespace ovq::server {
namespace {

using Json = nlohmann::json;

const std::string& ModelName(const HttpCallPtr& call) { return call->services().description.name; }

absl::Status Serve(const HttpCallPtr& call,
                   absl::StatusOr<OpenAiRequest> (*read)(const Json&, const std::string&)) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(OpenAiRequest request, read(body, ModelName(call)));
  const auto in_theirs = [api = request.api](const absl::Status& status) {
    return ToOpenAiError(status, api);
  };
  const v1::GenerateRequest message = request.message;
  auto writer = std::make_unique<OpenAiAnswer>(std::move(request), ModelName(call),
                                               call->services().engine.model().tokenizer,
                                               absl::ToUnixSeconds(absl::Now()));
  std::make_shared<GenerationCall>(call, std::move(writer),
                                   GenerationCall::Hooks{.translate_error = in_theirs})
      ->Start(message);
  return absl::OkStatus();
}

Json ModelObject(const ServiceContext& services) {
  return {{"id", services.description.name},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(services.started)},
          {"owned_by", "ovq-server"},
          {"root", services.description.name}};  // vLLM's, which its own clients ask for
}

// The answer of /tokenize, written as it comes and counted: a body's text can be millions of
// tokens.
class TokenList {
 public:
  TokenList(HttpCall& call, bool with_texts)
      : call_(call), tokenizer_(with_texts ? call.services().engine.model().tokenizer : nullptr) {}

  // ResourceExhausted: no more memory for this client.
  absl::Status Add(uint32_t id) {
    ++count_;
    absl::StrAppend(&ids_, ids_.empty() ? "" : ",", id);
    if (tokenizer_ != nullptr) {
      absl::StrAppend(&texts_, texts_.empty() ? "" : ",",
                      Dump(TokenText(tokenizer_, static_cast<int32_t>(id))));
    }
    const size_t bytes = ids_.size() + texts_.size();
    if (bytes < held_) return absl::OkStatus();
    constexpr size_t kHeldAtATime = size_t{64} << 10;
    held_ += kHeldAtATime;
    return ReserveBytes(call_.record().memory(), 2 * kHeldAtATime);  // and in the whole answer
  }
  std::string Answer(int64_t max_tokens) const {
    return absl::StrCat(
        "{\"count\":", count_, ",\"max_model_len\":", max_tokens, ",\"tokens\":[", ids_,
        "],\"token_strs\":", tokenizer_ == nullptr ? "null" : absl::StrCat("[", texts_, "]"), "}");
  }

 private:
  HttpCall& call_;
  const model::Tokenizer* const tokenizer_;  // null: ids alone
  std::string ids_, texts_;
  int64_t count_ = 0;
  size_t held_ = 0;
};

}  // namespace

absl::Status ServeModels(const HttpCallPtr& call, const PathWords& words) {
  const Json model = ModelObject(call->services());
  if (words.empty()) {
    call->Reply(200, Dump({{"object", "list"}, {"data", Json::array({model})}}));
    return absl::OkStatus();
  }
  if (words.front() != ModelName(call)) {
    return NotFound("model: expected \"" + ModelName(call) + "\", the one that is served", "model",
                    "model_not_found");
  }
  call->Reply(200, Dump(model));
  return absl::OkStatus();
}

absl::Status ServeCompletions(const HttpCallPtr& call, const PathWords&) {
  return Serve(call, &ReadCompletion);
}

absl::Status ServeChat(const HttpCallPtr& call, const PathWords&) { return Serve(call, &ReadChat); }

absl::Status ServeTokenize(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  BodyFields fields(body);
  ReadModel(fields, ModelName(call));
  const std::optional<std::string> text = fields.Text("prompt");
  const Json* const messages = fields.Any("messages");
  v1::Conversation conversation;
  if (messages != nullptr) ReadMessages(fields, "messages", *messages, conversation);
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
    ASSIGN_OR_RETURN(v1::ApplyTemplateResponse applied, ApplyTemplate(call->record(), apply));
    request.set_text(std::move(*applied.mutable_text()));
  }
  ASSIGN_OR_RETURN(const v1::TokenizeResponse tokens, Tokenize(call->record(), request));
  TokenList list(*call, with_texts);
  for (const uint32_t id : tokens.token_ids()) {
    RETURN_IF_ERROR(list.Add(id));
  }
  call->Reply(200, list.Answer(call->services().engine.options().max_prompt_tokens));
  return absl::OkStatus();
}

absl::Status ServeDetokenize(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  BodyFields fields(body);
  ReadModel(fields, ModelName(call));
  v1::DetokenizeRequest request;
  for (const uint32_t id : fields.Ids("tokens")) request.add_token_ids(id);
  RETURN_IF_ERROR(fields.Finish());
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse text, Detokenize(call->record(), request));
  call->Reply(200, Dump({{"prompt", text.text()}}));
  return absl::OkStatus();
}

}  // namespace ovq::server

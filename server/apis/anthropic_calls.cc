// /v1/messages of Anthropic's API, and its count_tokens.
#include "base/status_macros.h"
#include "server/apis/anthropic_answer.h"
#include "server/apis/anthropic_request.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/calls/handlers.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"

namespace ovq::server {

absl::Status ServeMessages(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  const ModelNames& names = call->services().description.names;
  ASSIGN_OR_RETURN(const OpenAiRequest request, ReadMessagesRequest(body, names, /*counts=*/false));
  call->SetSessionKey(request.session_key);
  StartGeneration(call, MakeMessageAnswer(request.stream, names.front()), request.message,
                  {.translate_error = [fields = CallerNames(request)](const absl::Status& status) {
                    return ToOpenAiError(status, fields);
                  }});
  return absl::OkStatus();
}

absl::Status ServeCountTokens(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(const OpenAiRequest request,
                   ReadMessagesRequest(body, call->services().description.names, /*counts=*/true));
  v1::ApplyTemplateRequest apply;
  *apply.mutable_conversation() = request.message.prompt().conversation();
  const absl::StatusOr<v1::ApplyTemplateResponse> text = ApplyTemplate(call->record(), apply);
  if (!text.ok()) return ToOpenAiError(text.status(), CallerNames(request));
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text->text());
  ASSIGN_OR_RETURN(const v1::TokenizeResponse tokens, Tokenize(call->record(), tokenize));
  call->Reply(200, Dump({{"input_tokens", tokens.token_ids_size()}}));
  return absl::OkStatus();
}

}  // namespace ovq::server

// /v1/completions: a request to the engine for each prompt, which also scores it where its
// log-probabilities are asked for (echo and logprobs).
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/apis/openai_answer.h"
#include "server/apis/openai_request.h"
#include "server/calls/generation.h"
#include "server/engine/common/limits.h"
#include "server/http/http_body.h"

namespace ovq::server {
namespace {

// A completion with its prompts.
class CompletionCall final : public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(HttpCallPtr call, OpenAiRequest request)
      : call_(std::move(call)), request_(std::move(request)), ids_(request_.prompts.size()) {}

  absl::Status Start() {
    for (size_t p = 0; request_.echo && p < ids_.size(); ++p) {
      absl::Status status = Tokenize(p);
      if (status.ok()) status = CheckGenerate(Message(p), call_->record());
      if (!status.ok()) return Translated(status, p);
    }
    Generate();
    return absl::OkStatus();
  }

 private:
  bool scored() const { return request_.echo && request_.message.output().logprobs(); }
  std::optional<int> prompt_scores() const {
    if (!scored()) return std::nullopt;
    return static_cast<int>(request_.message.output().top_logprobs());
  }

  absl::Status Translated(const absl::Status& status, size_t p) const {
    FieldNames names = CallerNames(request_);
    if (request_.prompts.size() > 1) names.prompt = absl::StrCat("prompt[", p, "]");
    return ToOpenAiError(status, names);
  }

  // Gets the ids of a prompt whose tokens are shown, and takes memory for them.
  absl::Status Tokenize(size_t p) {
    ASSIGN_OR_RETURN(PromptIds tokens, PromptTokens(request_.prompts[p], "", PromptPlace(),
                                                    call_->services().engine));
    ids_[p] = std::move(tokens.ids);
    const size_t shown = ids_[p].size() * request_.choices() *
                         (scored() ? 2 + request_.message.output().top_logprobs() : 1);
    constexpr size_t kShownBytes = 64;  // of a token or log-probability in JSON
    if (shown > engine::kMaxAnswerBytes / kShownBytes) {
      return engine::BadField(
          "echo",
          absl::StrCat("at most ", engine::kMaxAnswerBytes / kShownBytes,
                       " tokens and log-probabilities of a prompt, over its choices"),
          absl::StrCat(shown));
    }
    return ReserveBytes(call_->record().memory(), shown * kShownBytes);
  }

  void Generate() {
    auto writer = MakeCompletionAnswer(request_, call_->services().description.names.front(),
                                       call_->services().engine.model().tokenizer,
                                       absl::ToUnixSeconds(absl::Now()));
    std::vector<Generation> generations;
    for (size_t p = 0; p < request_.prompts.size(); ++p) {
      generations.push_back(
          {.submit =
               [this, p](CallRecord& record, std::shared_ptr<engine::TokenStream> stream) {
                 return SubmitGenerate(Message(p), record, std::move(stream), prompt_scores());
               },
           .first_choice = static_cast<int>(p * request_.choices()),
           .before = [self = shared_from_this(),
                      p](const engine::StreamEvent& event) { return self->Echo(p, event); },
           .translate_error =
               [self = shared_from_this(), p](const absl::Status& status) {
                 return self->Translated(status, p);
               }});
    }
    StartGenerations(call_, std::move(writer), std::move(generations));
  }

  v1::GenerateRequest Message(size_t p) const {
    v1::GenerateRequest message = request_.message;
    v1::Prompt& prompt = *message.mutable_prompt();
    if (!request_.echo) prompt.MergeFrom(request_.prompts[p]);
    if (request_.echo)
      prompt.mutable_token_ids()->mutable_ids()->Add(ids_[p].begin(), ids_[p].end());
    return message;
  }

  // The prompt as the first part of each of its choices, once its scores, if any, are there.
  std::vector<engine::StreamEvent> Echo(size_t p, const engine::StreamEvent& event) const {
    const bool due = scored() ? event.prompt_scores.has_value() : event.started.has_value();
    if (!request_.echo || !due) return {};
    const model::Tokenizer* const tokenizer = call_->services().engine.model().tokenizer;
    engine::TokenChunk chunk;
    if (request_.prompts[p].has_text()) {
      chunk.text = request_.prompts[p].text();
    } else if (tokenizer != nullptr) {
      chunk.text = tokenizer->Decode(ids_[p]).value_or("");
    }
    if (scored()) {
      chunk.token_ids = ids_[p];
      chunk.logprobs.push_back(std::numeric_limits<float>::quiet_NaN());
      chunk.top.emplace_back();
      for (const model::TokenScore& score : *event.prompt_scores) {
        chunk.logprobs.push_back(score.logprob.value_or(chunk.logprobs.front()));
        chunk.top.push_back(score.top);
      }
    }
    std::vector<engine::StreamEvent> events;
    for (chunk.index = 0; chunk.index < static_cast<int>(request_.choices()); ++chunk.index) {
      events.push_back({.chunk = chunk});
    }
    return events;
  }

  const HttpCallPtr call_;
  const OpenAiRequest request_;
  std::vector<std::vector<int32_t>> ids_;  // of each prompt, if they are shown
};

}  // namespace

absl::Status ServeCompletions(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(OpenAiRequest request, ReadCompletion(body, call->services().description.names));
  call->SetSessionKey(request.session_key);
  return std::make_shared<CompletionCall>(call, std::move(request))->Start();
}

}  // namespace ovq::server

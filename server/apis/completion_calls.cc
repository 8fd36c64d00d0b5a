// /v1/completions: a request to the engine for each prompt and, where its log-probabilities are
// asked for (echo and logprobs), a score before it.
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/apis/openai_answer.h"
#include "server/apis/openai_request.h"
#include "server/calls/generation.h"
#include "server/engine/common/limits.h"
#include "server/engine/common/validate.h"
#include "server/http/http_body.h"

namespace ovq::server {
namespace {

using Scores = std::vector<model::TokenScore>;

// A completion until its answer begins.
class CompletionCall final : public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(HttpCallPtr call, OpenAiRequest request)
      : call_(std::move(call)),
        request_(std::move(request)),
        ids_(request_.prompts.size()),
        scores_(request_.prompts.size()),
        open_(request_.prompts.size()) {}

  absl::Status Start() {
    for (size_t p = 0; request_.echo && p < ids_.size(); ++p) {
      absl::Status status = Tokenize(p);
      if (status.ok()) status = CheckGenerate(Message(p), call_->record());
      if (!status.ok()) return Translated(status, p);
    }
    if (!scored()) {
      Generate();
      return absl::OkStatus();
    }
    for (size_t p = 0; p < ids_.size(); ++p) {
      v1::ScoreRequest message;
      message.set_memory(request_.message.memory());
      if (request_.message.has_max_centroids()) {
        message.set_max_centroids(request_.message.max_centroids());
      }
      message.set_top_logprobs(request_.message.output().top_logprobs());
      const absl::Status status =
          SubmitScore(message, ids_[p], call_->record(),
                      [self = shared_from_this(), p](absl::StatusOr<Scores> scores) {
                        self->AddScores(p, std::move(scores));
                      });
      if (!status.ok()) AddScores(p, status);
    }
    return absl::OkStatus();
  }

 private:
  bool scored() const { return request_.echo && request_.message.output().logprobs(); }

  absl::Status Translated(const absl::Status& status, size_t p) const {
    const bool several = request_.prompts.size() > 1;
    return ToOpenAiError(status, request_.api,
                         several ? absl::StrCat("prompt[", p, "]") : "prompt");
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

  // The last of all starts the answer, or ends the call with the first error.
  void AddScores(size_t p, absl::StatusOr<Scores> scores) {
    absl::ReleasableMutexLock lock(&mutex_);
    if (scores.ok()) {
      scores_[p] = *std::move(scores);
    } else if (error_.ok()) {
      error_ = Translated(scores.status(), p);
      call_->record().cancel()->Cancel();
    }
    if (--open_ > 0) return;
    lock.Release();
    error_.ok() ? Generate() : call_->Fail(error_);
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
                 return Submit(p, record, std::move(stream));
               },
           .first_choice = static_cast<int>(p * request_.choices()),
           .before = Echo(p),
           .translate_error =
               [self = shared_from_this(), p](const absl::Status& status) {
                 return self->Translated(status, p);
               }});
    }
    StartGenerations(call_, std::move(writer), std::move(generations));
  }

  absl::Status Submit(size_t p, CallRecord& record, std::shared_ptr<engine::TokenStream> stream) {
    if (scored() && request_.message.stop().max_tokens() == 0) {  // the engine has done all of it
      engine::Started started;
      started.prompt_tokens = std::ssize(ids_[p]);
      stream->Push({.started = started});
      for (int i = 0; i < static_cast<int>(request_.choices()); ++i) {
        stream->Push(
            {.finished = engine::Finished{.index = i, .reason = engine::FinishReason::kLength}});
      }
      stream->Close(absl::OkStatus());
      return absl::OkStatus();
    }
    return SubmitGenerate(Message(p), record, std::move(stream));
  }

  v1::GenerateRequest Message(size_t p) const {
    v1::GenerateRequest message = request_.message;
    v1::Prompt& prompt = *message.mutable_prompt();
    if (!request_.echo) prompt.MergeFrom(request_.prompts[p]);
    if (request_.echo)
      prompt.mutable_token_ids()->mutable_ids()->Add(ids_[p].begin(), ids_[p].end());
    return message;
  }

  // The prompt as the first part of each of its choices.
  std::vector<engine::StreamEvent> Echo(size_t p) const {
    if (!request_.echo) return {};
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
      for (size_t i = 0; i + 1 < ids_[p].size(); ++i) {
        chunk.logprobs.push_back(scores_[p][i].logprob.value_or(chunk.logprobs.front()));
        chunk.top.push_back(scores_[p][i].top);
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
  absl::Mutex mutex_;                      // guards the members below
  std::vector<Scores> scores_;             // of each prompt, if their log-probabilities are shown
  size_t open_;                            // prompts without scores
  absl::Status error_;
};

}  // namespace

absl::Status ServeCompletions(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(OpenAiRequest request, ReadCompletion(body, call->services().description.names));
  call->SetSessionKey(request.session_key);
  return std::make_shared<CompletionCall>(call, std::move(request))->Start();
}

}  // namespace ovq::server

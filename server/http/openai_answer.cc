#include "server/http/openai_answer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/engine/common/limits.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

Json Bytes(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

}  // namespace

std::string TokenText(const model::Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr || !tokenizer->has_text()) return absl::StrCat("token_id:", id);
  return tokenizer->Decode(std::array{id}).value_or("");
}

void AppendChatLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                        Json& list) {
  const auto entry = [tokenizer](int32_t id, float logprob) {
    const std::string text = TokenText(tokenizer, id);
    return Json{{"token", text}, {"logprob", logprob}, {"bytes", Bytes(text)}};
  };
  for (size_t i = 0; i < chunk.logprobs.size(); ++i) {
    Json& token = list.emplace_back(entry(chunk.token_ids[i], chunk.logprobs[i]));
    token["top_logprobs"] = Json::array();
    if (i >= chunk.top.size()) continue;
    for (const model::TokenLogprob& top : chunk.top[i]) {
      token["top_logprobs"].push_back(entry(top.token_id, top.logprob));
    }
  }
}

Json AnswerUsage::ToJson() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}};
}

Json FinishName(engine::FinishReason reason) {
  if (reason == engine::FinishReason::kStop) return "stop";
  if (reason == engine::FinishReason::kLength) return "length";
  return nullptr;
}

Json StopJson(const engine::Finished& finished) {
  if (!finished.matched_stop.empty()) return finished.matched_stop;
  if (finished.matched_token_id) return *finished.matched_token_id;
  return nullptr;
}

AnswerChunks::AnswerChunks(const char* id_prefix, const std::string& object,
                           const std::string& model, int64_t created, const OpenAiRequest& request)
    : api_(request.api),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      base_({{"id", absl::StrCat(id_prefix, UnguessableHex())},
             {"object", object},
             {"created", created},
             {"model", model}}) {
  Json chunk = base_;
  if (object.starts_with("chat")) chunk["object"] = object + ".chunk";
  head_ = Dump(chunk);
  head_.pop_back();
}

void AnswerChunks::Append(int index, const Json& members, const AnswerUsage& usage,
                          std::string& out) const {
  std::string data =
      absl::StrCat(head_, ",\"choices\":[{\"index\":", index, ",", Dump(members).substr(1), "]");
  if (continuous_usage_) absl::StrAppend(&data, ",\"usage\":", Dump(usage.ToJson()));
  data += '}';
  AppendEvent(data, out);
}

void AnswerChunks::End(const absl::Status& status, const AnswerUsage& usage,
                       std::string& out) const {
  if (!status.ok()) return AppendEvent(ErrorBody(ToOpenAiError(status, api_)), out);
  if (include_usage_) {
    AppendEvent(absl::StrCat(head_, ",\"choices\":[],\"usage\":", Dump(usage.ToJson()), "}"), out);
  }
  AppendEvent("[DONE]", out);
}

void AnswerChunks::Whole(Json choices, const AnswerUsage& usage, std::string& out) const {
  Json whole = base_;
  whole["system_fingerprint"] = nullptr;
  whole["choices"] = std::move(choices);
  whole["usage"] = usage.ToJson();
  out += Dump(whole);
}

namespace {

class CompletionAnswer final : public AnswerWriter {
 public:
  CompletionAnswer(OpenAiRequest request, const std::string& model,
                   const model::Tokenizer* tokenizer, int64_t created)
      : request_(std::move(request)),
        tokenizer_(tokenizer),
        chunks_("cmpl-", "text_completion", model, created, request_),
        choices_(std::min<size_t>(request_.message.sampling().n(), engine::kMaxCompletions)) {}

  bool streams() const override { return request_.stream; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) usage_.Begin(*event.started);
    if (event.chunk) {
      const engine::TokenChunk& chunk = *event.chunk;
      Choice& choice = choices_[chunk.index];
      usage_.completion_tokens += std::ssize(chunk.token_ids);
      if (streams()) {
        Json logprobs;
        AddLogprobs(chunk, choice, logprobs);
        Append(chunk.index, chunk.text, logprobs, nullptr, nullptr, out);
      } else {
        choice.text += chunk.text;
        AddLogprobs(chunk, choice, choice.logprobs);
      }
    }
    if (event.finished) {
      usage_.Finish(*event.finished);
      Choice& choice = choices_[event.finished->index];
      choice.finish = FinishName(event.finished->reason);
      choice.stop = StopJson(*event.finished);
      if (streams()) {
        Append(event.finished->index, "", nullptr, choice.finish, choice.stop, out);
      }
    }
  }

  void End(const absl::Status& status, std::string& out) override {
    if (streams()) return chunks_.End(status, usage_, out);
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      choices.push_back({{"index", i},
                         {"text", choice.text},
                         {"logprobs", choice.logprobs},
                         {"finish_reason", choice.finish},
                         {"stop_reason", choice.stop}});
    }
    chunks_.Whole(std::move(choices), usage_, out);
  }

 private:
  struct Choice {
    std::string text;
    Json logprobs;           // null if not asked for
    Json finish;             // null until the end
    Json stop;               // the stop text or token id that ended it, or null
    int64_t text_bytes = 0;  // bytes so far, for text_offset
  };

  // The form of the completions API: parallel lists.
  void AddLogprobs(const engine::TokenChunk& chunk, Choice& choice, Json& to) const {
    if (chunk.logprobs.empty()) return;
    if (to.is_null()) {
      to = {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
    }
    for (size_t i = 0; i < chunk.logprobs.size(); ++i) {
      const std::string text = TokenText(tokenizer_, chunk.token_ids[i]);
      Json best = Json::object();
      if (i < chunk.top.size()) {
        for (const model::TokenLogprob& top : chunk.top[i]) {
          best.emplace(TokenText(tokenizer_, top.token_id), top.logprob);
        }
      }
      best.emplace(text, chunk.logprobs[i]);  // the drawn token is among them
      to["tokens"].push_back(text);
      to["token_logprobs"].push_back(chunk.logprobs[i]);
      to["top_logprobs"].push_back(std::move(best));
      to["text_offset"].push_back(choice.text_bytes);
      choice.text_bytes += std::ssize(text);
    }
  }

  void Append(int index, const std::string& text, const Json& logprobs, const Json& finish,
              const Json& stop, std::string& out) const {
    Json members = {{"text", text}, {"logprobs", logprobs}, {"finish_reason", finish}};
    if (!finish.is_null()) members["stop_reason"] = stop;
    chunks_.Append(index, members, usage_, out);
  }

  const OpenAiRequest request_;
  const model::Tokenizer* const tokenizer_;
  const AnswerChunks chunks_;
  std::vector<Choice> choices_;
  AnswerUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeCompletionAnswer(OpenAiRequest request, const std::string& model,
                                                   const model::Tokenizer* tokenizer,
                                                   int64_t created) {
  return std::make_unique<CompletionAnswer>(std::move(request), model, tokenizer, created);
}

}  // namespace ovq::server

#include "server/apis/openai_answer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/apis/completion_logprobs.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

// The bytes of a token; null if it has none.
Json Bytes(const std::string& text) {
  Json bytes;
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

}  // namespace

void AppendChatLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                        Json& list) {
  const auto entry = [tokenizer](int32_t id, float logprob) {
    const model::ShownToken shown = model::ShowToken(tokenizer, id);
    return Json{{"token", shown.text}, {"logprob", logprob}, {"bytes", Bytes(shown.bytes)}};
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
  if (!status.ok()) return AppendEvent(ErrorBody(ToOpenAiError(status, {.api = api_})), out);
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
        choices_(request_.choices() * request_.prompts.size()) {}

  bool streams() const override { return request_.stream; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) usage_.Begin(*event.started);
    if (event.chunk) {
      const engine::TokenChunk& chunk = *event.chunk;
      Choice& choice = choices_[chunk.index];
      const bool is_prompt = request_.echo && !std::exchange(choice.begun, true);
      if (!is_prompt) usage_.completion_tokens += std::ssize(chunk.token_ids);
      if (streams()) {
        Json logprobs;
        AddLogprobs(chunk, logprobs);
        Append(chunk.index, chunk.text, logprobs, nullptr, nullptr, out);
      } else {
        choice.text += chunk.text;
        AddLogprobs(chunk, choice.logprobs);
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
    bool begun = false;
    Json logprobs;                              // null if not asked for
    Json finish;                                // null until the end
    Json stop;                                  // the stop text or token id that ended it, or null
    std::optional<model::TextOffsets> offsets;  // with logprobs
  };

  void AddLogprobs(const engine::TokenChunk& chunk, Json& to) {
    if (chunk.logprobs.empty()) return;
    std::optional<model::TextOffsets>& offsets = choices_[chunk.index].offsets;
    if (!offsets) {
      offsets.emplace(tokenizer_, /*at_start=*/request_.echo);
      const auto& ids = request_.prompts[chunk.index / request_.choices()].token_ids().ids();
      // A character has at most four bytes, so no more tokens can have begun it.
      const std::vector<int32_t> tail(ids.end() - std::min(4, ids.size()), ids.end());
      if (!request_.echo) offsets->Precede(tail);
    }
    AppendCompletionLogprobs(chunk, tokenizer_, *offsets, to);
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

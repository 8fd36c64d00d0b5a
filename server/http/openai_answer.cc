#include "server/http/openai_answer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/engine/common/limits.h"
#include "server/http/completion_logprobs.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

// The bytes of a token; null if it has none.
Json Bytes(const std::string& text) {
  Json bytes;
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

Json StopJson(const engine::Finished& finished) {
  if (!finished.matched_stop.empty()) return finished.matched_stop;
  if (finished.matched_token_id) return *finished.matched_token_id;
  return nullptr;
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

namespace {

// "stop" or "length"; null for other ends.
Json FinishName(engine::FinishReason reason) {
  if (reason == engine::FinishReason::kStop) return "stop";
  if (reason == engine::FinishReason::kLength) return "length";
  return nullptr;
}

class OpenAiAnswer final : public AnswerWriter {
 public:
  OpenAiAnswer(OpenAiRequest request, const std::string& model, const model::Tokenizer* tokenizer,
               int64_t created)
      : request_(std::move(request)),
        tokenizer_(tokenizer),
        base_({{"id", absl::StrCat(chat() ? "chatcmpl-" : "cmpl-", UnguessableHex())},
               {"object", chat() ? "chat.completion" : "text_completion"},
               {"created", created},
               {"model", model}}),
        choices_(request_.choices() * std::max<size_t>(request_.prompts.size(), 1)) {
    Json chunk = base_;
    if (chat()) chunk["object"] = "chat.completion.chunk";
    head_ = Dump(chunk);
    head_.pop_back();
  }

  bool streams() const override { return request_.stream; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) {
      prompt_tokens_ += event.started->prompt_tokens;
      cached_tokens_ += event.started->cached_tokens;
      for (size_t i = 0; streams() && chat() && i < choices_.size(); ++i) {
        AppendChunk(static_cast<int>(i),
                    R"("delta":{"role":"assistant","content":""},"logprobs":null,)"
                    R"("finish_reason":null)",
                    out);
      }
    }
    if (event.chunk) {
      const engine::TokenChunk& chunk = *event.chunk;
      Choice& choice = choices_[chunk.index];
      const bool is_prompt = request_.echo && !std::exchange(choice.begun, true);
      if (!is_prompt) completion_tokens_ += std::ssize(chunk.token_ids);
      if (streams()) {
        Json logprobs;
        AddLogprobs(chunk, logprobs);
        const std::string text = Dump(chunk.text);
        AppendChunk(
            chunk.index,
            absl::StrCat(chat() ? "\"delta\":{\"content\":" : "\"text\":", text, chat() ? "}" : "",
                         ",\"logprobs\":", Dump(logprobs), ",\"finish_reason\":null"),
            out);
      } else {
        choice.text += chunk.text;
        AddLogprobs(chunk, choice.logprobs);
      }
    }
    if (event.finished) {
      Choice& choice = choices_[event.finished->index];
      choice.finish = FinishName(event.finished->reason);
      choice.stop = StopJson(*event.finished);
      if (streams()) {
        AppendChunk(event.finished->index,
                    absl::StrCat(chat() ? "\"delta\":{}" : "\"text\":\"\"",
                                 ",\"logprobs\":null,\"finish_reason\":", Dump(choice.finish),
                                 ",\"stop_reason\":", Dump(choice.stop)),
                    out);
      }
    }
  }

  void End(const absl::Status& status, std::string& out) override {
    if (!streams()) {
      out += Dump(Whole());
      return;
    }
    if (!status.ok()) return AppendEvent(ErrorBody(ToOpenAiError(status, request_.api)), out);
    if (request_.include_usage) {
      AppendEvent(absl::StrCat(head_, ",\"choices\":[],\"usage\":", Dump(Usage()), "}"), out);
    }
    AppendEvent("[DONE]", out);
  }

 private:
  struct Choice {
    std::string text;
    bool begun = false;
    Json logprobs;                              // null if not asked for
    Json finish;                                // null until the end
    Json stop;                                  // the stop text or token id that ended it, or null
    std::optional<model::TextOffsets> offsets;  // of completions with logprobs
  };

  bool chat() const { return request_.api == OpenAiApi::kChat; }
  void AddLogprobs(const engine::TokenChunk& chunk, Json& to) {
    if (chunk.logprobs.empty()) return;
    if (chat()) {
      if (to.is_null()) to = {{"content", Json::array()}, {"refusal", nullptr}};
      return AppendChatLogprobs(chunk, tokenizer_, to["content"]);
    }
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

  Json Usage() const {
    return {{"prompt_tokens", prompt_tokens_},
            {"completion_tokens", completion_tokens_},
            {"total_tokens", prompt_tokens_ + completion_tokens_},
            {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
  }

  // Appends a chunk with one choice; `members`: its members without the index.
  void AppendChunk(int index, const std::string& members, std::string& out) const {
    std::string data = absl::StrCat(head_, ",\"choices\":[{\"index\":", index, ",", members, "}]");
    if (request_.continuous_usage) absl::StrAppend(&data, ",\"usage\":", Dump(Usage()));
    data += '}';
    AppendEvent(data, out);
  }

  Json Whole() const {
    Json whole = base_;
    whole["system_fingerprint"] = nullptr;
    whole["choices"] = Json::array();
    whole["usage"] = Usage();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      Json& to = whole["choices"].emplace_back(Json{{"index", i},
                                                    {"logprobs", choice.logprobs},
                                                    {"finish_reason", choice.finish},
                                                    {"stop_reason", choice.stop}});
      if (chat()) {
        to["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      } else {
        to["text"] = choice.text;
      }
    }
    return whole;
  }

  const OpenAiRequest request_;
  const model::Tokenizer* const tokenizer_;
  const Json base_;   // members of every form of the answer
  std::string head_;  // beginning of every chunk, up to its choices
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeOpenAiAnswer(OpenAiRequest request, const std::string& model,
                                               const model::Tokenizer* tokenizer, int64_t created) {
  return std::make_unique<OpenAiAnswer>(std::move(request), model, tokenizer, created);
}

}  // namespace ovq::server

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

Json StopJson(const engine::Finished& finished) {
  if (!finished.matched_stop.empty()) return finished.matched_stop;
  if (finished.matched_token_id) return *finished.matched_token_id;
  return nullptr;
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
        choices_(std::min<size_t>(request_.message.sampling().n(), engine::kMaxCompletions)) {
    Json chunk = base_;
    if (chat()) chunk["object"] = "chat.completion.chunk";
    head_ = Dump(chunk);
    head_.pop_back();
  }

  bool streams() const override { return request_.stream; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) {
      prompt_tokens_ = event.started->prompt_tokens;
      cached_tokens_ = event.started->cached_tokens;
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
      completion_tokens_ += std::ssize(chunk.token_ids);
      if (streams()) {
        Json logprobs;
        AddLogprobs(chunk, choice, logprobs);
        const std::string text = Dump(chunk.text);
        AppendChunk(
            chunk.index,
            absl::StrCat(chat() ? "\"delta\":{\"content\":" : "\"text\":", text, chat() ? "}" : "",
                         ",\"logprobs\":", Dump(logprobs), ",\"finish_reason\":null"),
            out);
      } else {
        choice.text += chunk.text;
        AddLogprobs(chunk, choice, choice.logprobs);
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
    Json logprobs;           // null if not asked for
    Json finish;             // null until the end
    Json stop;               // the stop text or token id that ended it, or null
    int64_t text_bytes = 0;  // bytes so far, for text_offset
  };

  bool chat() const { return request_.api == OpenAiApi::kChat; }
  // The form of the completions API: parallel lists.
  void AddLogprobs(const engine::TokenChunk& chunk, Choice& choice, Json& to) const {
    if (chunk.logprobs.empty()) return;
    if (chat()) {
      if (to.is_null()) to = {{"content", Json::array()}, {"refusal", nullptr}};
      return AppendChatLogprobs(chunk, tokenizer_, to["content"]);
    }
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

#include "server/apis/chat_answer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "server/engine/common/limits.h"

namespace ovq::server {

std::string NewCallId() {
  constexpr size_t kDigits = 9;
  return UnguessableHex().substr(0, kDigits);
}

namespace {

class ChatAnswer final : public AnswerWriter {
 public:
  ChatAnswer(OpenAiRequest request, const std::string& model, const model::Tokenizer* tokenizer,
             int64_t created)
      : request_(std::move(request)),
        tokenizer_(tokenizer),
        chunks_("chatcmpl-", "chat.completion", model, created, request_),
        choices_(std::min<size_t>(request_.message.sampling().n(), engine::kMaxCompletions)) {}

  bool streams() const override { return request_.stream; }

  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) {
      usage_.Begin(*event.started);
      for (size_t i = 0; streams() && i < choices_.size(); ++i) {
        Append(i, {{"role", "assistant"}, {"content", ""}}, nullptr, out);
      }
    }
    if (event.chunk) AddChunk(*event.chunk, out);
    if (event.finished) {
      usage_.Finish(*event.finished);
      Choice& choice = choices_[event.finished->index];
      choice.finish = FinishName(event.finished->reason);
      if (choice.finish == "stop" && choice.n_calls > 0) choice.finish = "tool_calls";
      choice.stop = StopJson(*event.finished);
      if (streams()) {
        chunks_.Append(event.finished->index,
                       {{"delta", Json::object()},
                        {"logprobs", nullptr},
                        {"finish_reason", choice.finish},
                        {"stop_reason", choice.stop}},
                       usage_, out);
      }
    }
  }

  void End(const absl::Status& status, std::string& out) override {
    if (streams()) return chunks_.End(status, usage_, out);
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      choices.push_back({{"index", i},
                         {"message", choice.Message()},
                         {"logprobs", choice.logprobs},
                         {"finish_reason", choice.finish},
                         {"stop_reason", choice.stop}});
    }
    chunks_.Whole(std::move(choices), usage_, out);
  }

 private:
  struct Choice {
    Json Message() const {
      Json message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
      if (!calls.empty() && content.empty()) message["content"] = nullptr;
      if (!reasoning.empty()) message["reasoning_content"] = reasoning;
      if (!calls.empty()) message["tool_calls"] = calls;
      return message;
    }
    // Adds a part of an answer that is not streamed.
    void Add(const Json& change) {
      if (change.contains("content")) content += change["content"].get_ref<const std::string&>();
      if (change.contains("reasoning_content")) {
        reasoning += change["reasoning_content"].get_ref<const std::string&>();
      }
      if (!change.contains("tool_calls")) return;
      Json call = change["tool_calls"].front();
      call.erase("index");
      if (call.contains("id")) return calls.push_back(std::move(call));
      calls.back()["function"]["arguments"].get_ref<std::string&>() +=
          call["function"]["arguments"].get_ref<const std::string&>();
    }

    size_t n_calls = 0;
    // These are kept of an answer that is not streamed.
    std::string content, reasoning;
    Json calls = Json::array();
    Json logprobs;  // null if not asked for
    Json finish;    // null until the end
    Json stop;      // the stop text or token id that ended it, or null
  };

  // The part as the change of a message; {} for none.
  static Json Change(const answers::AnswerPart& part, size_t& n_calls) {
    using Kind = answers::AnswerPart::Kind;
    switch (part.kind) {
      case Kind::kContent:
        return {{"content", part.text}};
      case Kind::kReasoning:
        return {{"reasoning_content", part.text}};
      case Kind::kCall: {
        const Json call = {{"index", n_calls++},
                           {"id", NewCallId()},
                           {"type", "function"},
                           {"function", {{"name", part.text}, {"arguments", ""}}}};
        return {{"tool_calls", Json::array({call})}};
      }
      case Kind::kArguments: {
        const Json call = {{"index", n_calls - 1}, {"function", {{"arguments", part.text}}}};
        return {{"tool_calls", Json::array({call})}};
      }
      case Kind::kCallEnd:
        break;
    }
    return Json::object();
  }

  void AddChunk(const engine::TokenChunk& chunk, std::string& out) {
    Choice& choice = choices_[chunk.index];
    usage_.completion_tokens += std::ssize(chunk.token_ids);
    Json logprobs;
    if (!chunk.logprobs.empty()) {
      logprobs = {{"content", Json::array()}, {"refusal", nullptr}};
      AppendChatLogprobs(chunk, tokenizer_, logprobs["content"]);
    }
    bool sent = false;
    for (const answers::AnswerPart& part : chunk.parts) {
      const Json change = Change(part, choice.n_calls);
      if (!streams()) choice.Add(change);
      if (!streams() || change.empty()) continue;
      Append(chunk.index, change, sent ? Json() : logprobs, out);
      sent = true;
    }
    if (streams()) {
      // A token that gives no text is shown, too: clients measure times by chunks.
      if (!sent) Append(chunk.index, Json::object(), logprobs, out);
    } else if (choice.logprobs.is_null()) {
      choice.logprobs = std::move(logprobs);
    } else {
      for (Json& entry : logprobs["content"]) choice.logprobs["content"].push_back(entry);
    }
  }

  void Append(size_t index, const Json& delta, const Json& logprobs, std::string& out) const {
    chunks_.Append(static_cast<int>(index),
                   {{"delta", delta}, {"logprobs", logprobs}, {"finish_reason", nullptr}}, usage_,
                   out);
  }

  const OpenAiRequest request_;
  const model::Tokenizer* const tokenizer_;
  const AnswerChunks chunks_;
  std::vector<Choice> choices_;
  AnswerUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatAnswer(OpenAiRequest request, const std::string& model,
                                             const model::Tokenizer* tokenizer, int64_t created) {
  return std::make_unique<ChatAnswer>(std::move(request), model, tokenizer, created);
}

}  // namespace ovq::server

#include "server/apis/anthropic_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/apis/chat_answer.h"
#include "server/apis/openai_fields.h"
#include "server/http/http_errors.h"
#include "server/http/json.h"

namespace ovq::server {
namespace {

// The message's content is a list of blocks: thinking, text and tool_use, in the answer's order.
class MessageAnswer final : public AnswerWriter {
 public:
  MessageAnswer(bool streams, const std::string& model)
      : streams_(streams),
        message_({{"id", absl::StrCat("msg_", UnguessableHex())},
                  {"type", "message"},
                  {"role", "assistant"},
                  {"model", model},
                  {"content", Json::array()},
                  {"stop_reason", nullptr},
                  {"stop_sequence", nullptr}}) {}

  bool streams() const override { return streams_; }

  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) {
      const int64_t cached = event.started->cached_tokens;
      message_["usage"] = {{"input_tokens", event.started->prompt_tokens - cached},
                           {"cache_creation_input_tokens", 0},
                           {"cache_read_input_tokens", cached},
                           {"output_tokens", 0}};
      Append({{"type", "message_start"}, {"message", message_}}, out);
    }
    if (event.chunk) {
      for (const answers::AnswerPart& part : event.chunk->parts) AddPart(part, out);
    }
    if (!event.finished) return;
    EndBlock(out);
    const engine::Finished& finished = *event.finished;
    const bool calls = n_calls_ > 0;
    message_["stop_reason"] = finished.reason == engine::FinishReason::kLength ? "max_tokens"
                              : !finished.matched_stop.empty()                 ? "stop_sequence"
                              : calls                                          ? "tool_use"
                                                                               : "end_turn";
    if (!finished.matched_stop.empty()) message_["stop_sequence"] = finished.matched_stop;
    message_["usage"]["output_tokens"] = finished.usage.generated_tokens;
    Append(
        {{"type", "message_delta"},
         {"delta",
          {{"stop_reason", message_["stop_reason"]}, {"stop_sequence", message_["stop_sequence"]}}},
         {"usage", message_["usage"]}},
        out);
  }

  void End(const absl::Status& status, std::string& out) override {
    if (!streams_) {
      out += Dump(message_);
    } else if (status.ok()) {
      Append({{"type", "message_stop"}}, out);
    } else {
      Append(ErrorObject(ToOpenAiError(status, {.api = OpenAiApi::kMessages})), out);
    }
  }

 private:
  void AddPart(const answers::AnswerPart& part, std::string& out) {
    using Kind = answers::AnswerPart::Kind;
    switch (part.kind) {
      case Kind::kContent:
        if (open_ != "text") BeginBlock({{"type", "text"}, {"text", ""}}, out);
        return Grow("text", {{"type", "text_delta"}, {"text", part.text}}, part.text, out);
      case Kind::kReasoning:
        if (open_ != "thinking") {
          BeginBlock({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        }
        return Grow("thinking", {{"type", "thinking_delta"}, {"thinking", part.text}}, part.text,
                    out);
      case Kind::kCall:
        ++n_calls_;
        return BeginBlock({{"type", "tool_use"},
                           {"id", NewCallId()},
                           {"name", part.text},
                           {"input", Json::object()}},
                          out);
      case Kind::kArguments:
        return Grow("arguments", {{"type", "input_json_delta"}, {"partial_json", part.text}},
                    part.text, out);
      case Kind::kCallEnd:
        return EndBlock(out);
    }
  }

  void BeginBlock(Json block, std::string& out) {
    EndBlock(out);
    open_ = block["type"].get<std::string>();
    Append({{"type", "content_block_start"}, {"index", n_blocks_}, {"content_block", block}}, out);
    if (!streams_) message_["content"].push_back(std::move(block));
  }

  // Appends text to the open block's `field`; "arguments" are kept until they are complete.
  void Grow(const char* field, Json delta, const std::string& text, std::string& out) {
    Append({{"type", "content_block_delta"}, {"index", n_blocks_}, {"delta", std::move(delta)}},
           out);
    if (streams_) return;
    if (open_ == "tool_use") {
      arguments_ += text;
    } else {
      message_["content"].back()[field].get_ref<std::string&>() += text;
    }
  }

  void EndBlock(std::string& out) {
    if (open_.empty()) return;
    if (open_ == "tool_use" && !streams_) {
      // A call that the length limit cut has no arguments that can be read.
      const Json input = Json::parse(std::exchange(arguments_, ""), nullptr, false);
      if (input.is_object()) message_["content"].back()["input"] = input;
    }
    Append({{"type", "content_block_stop"}, {"index", n_blocks_++}}, out);
    open_.clear();
  }

  void Append(const Json& event, std::string& out) const {
    if (!streams_) return;
    absl::StrAppend(&out, "event: ", event["type"].get_ref<const std::string&>(), "\n");
    AppendEvent(Dump(event), out);
  }

  const bool streams_;
  Json message_;
  std::string open_;       // the type of the block that is still written; empty: none
  std::string arguments_;  // of the open block
  size_t n_blocks_ = 0;    // that have ended
  size_t n_calls_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessageAnswer(bool streams, const std::string& model) {
  return std::make_unique<MessageAnswer>(streams, model);
}

}  // namespace ovq::server

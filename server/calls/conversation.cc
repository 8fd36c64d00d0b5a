#include "server/calls/conversation.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

// An error of the template. Its text may quote the caller, so the log gets the field's name only.
absl::Status TemplateError(const std::string& field, const absl::Status& why) {
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, ": ", why.message()));
  return engine::WithLogText(engine::WithFacts(status, {.field = field}),
                             absl::StrCat(field, ": refused"));
}

absl::Status HistoryMismatch(const std::string& path, std::string_view why) {
  const std::string field = path + ".known";
  return engine::WithFacts(
      absl::FailedPreconditionError(absl::StrCat(field, ": ", std::string(why))), {.field = field});
}

// Renders one conversation by the model's template.
class Writer {
 public:
  static absl::StatusOr<Writer> Make(const v1::Conversation& from, const std::string& path,
                                     const engine::Engine& engine) {
    const jinja::ChatFormat* format = engine.model().chat_format;
    if (format == nullptr) return engine::ModelLacks(path, "chat template");
    // Checked before the messages are copied.
    RETURN_IF_ERROR(engine::CheckMessageCount(from.messages_size(), path));
    Writer writer(*format, path, from.tools_json(),
                  absl::ToTM(engine.config().options.clock.wall(), absl::LocalTimeZone()));
    for (const v1::ChatMessage& message : from.messages()) {
      writer.messages.push_back({message.role(), message.content()});
    }
    RETURN_IF_ERROR(engine::CheckConversation(
        writer.messages, from.known(), static_cast<int64_t>(from.tools_json().size()), path));
    return writer;
  }

  absl::StatusOr<std::string> Text(size_t n_messages, bool opens_answer) const {
    absl::StatusOr<std::string> text =
        format_.Render(std::span(messages).first(n_messages), tools_json_, opens_answer, now_);
    if (!text.ok()) return TemplateError(path_, text.status());
    return text;
  }

  std::vector<jinja::ChatMessage> messages;

 private:
  Writer(const jinja::ChatFormat& format, const std::string& path, const std::string& tools_json,
         const std::tm& now)
      : format_(format), path_(path), tools_json_(tools_json), now_(now) {}

  const jinja::ChatFormat& format_;
  const std::string& path_;
  const std::string& tools_json_;
  const std::tm now_;
};

}  // namespace

PromptPlace FindPromptPlace(engine::Engine& engine, const std::string& session_id,
                            const std::string& tenant) {
  const absl::StatusOr<engine::SessionInfo> session = engine.sessions().Get(session_id, tenant);
  if (!session.ok()) return {};
  return {.at_start = session->position == 0, .last_token = session->last_token};
}

absl::StatusOr<std::string> NewText(const v1::Conversation& conversation, const std::string& path,
                                    const PromptPlace& place, const engine::Engine& engine) {
  ASSIGN_OR_RETURN(const Writer writer, Writer::Make(conversation, path, engine));
  const size_t known = conversation.known();
  if ((known == 0) != place.at_start) {
    return HistoryMismatch(path, known == 0
                                     ? "expected how many of the messages the session, which "
                                       "has tokens, holds; got 0"
                                     : "expected 0, as there is no session with tokens");
  }
  const bool opens_answer =
      !conversation.has_add_generation_prompt() || conversation.add_generation_prompt();
  absl::StatusOr<std::string> text = writer.Text(writer.messages.size(), opens_answer);
  if (known == 0 || !text.ok()) return text;
  // The text that the session has read: the messages, or, if the last one is an answer, the text
  // that opened the answer and the answer itself.
  const jinja::ChatMessage& last = writer.messages[known - 1];
  const bool is_answer = last.role == "assistant";
  ASSIGN_OR_RETURN(std::string read, writer.Text(known - is_answer, /*opens_answer=*/is_answer));
  if (is_answer) read += last.content;
  if (!text->starts_with(read)) {
    const auto differs = std::ranges::mismatch(*text, read).in1 - text->begin();
    return HistoryMismatch(path,
                           absl::StrCat("the chat template no longer writes the known messages as "
                                        "the session has read them: their texts differ at byte ",
                                        differs));
  }
  text->erase(0, read.size());
  // The session has the answer's end-of-sequence token already.
  if (is_answer && place.last_token.has_value() && engine.model().tokenizer != nullptr) {
    const std::map<int32_t, std::string> specials = engine.model().tokenizer->special_tokens();
    const auto end = specials.find(*place.last_token);
    if (end != specials.end() && text->starts_with(end->second)) {
      text->erase(0, end->second.size());
    }
  }
  return text;
}

std::string SystemText(const v1::Conversation& conversation, const engine::Engine& engine) {
  const std::string path;  // its errors are dropped
  absl::StatusOr<Writer> writer = Writer::Make(conversation, path, engine);
  if (!writer.ok()) return "";
  std::vector<jinja::ChatMessage>& messages = writer->messages;
  const auto other = std::ranges::find_if(messages, [](const jinja::ChatMessage& message) {
    return message.role != "system" && message.role != "developer";
  });
  const auto n_system = static_cast<size_t>(other - messages.begin());
  // Templates may refuse to render system messages alone, so one more message is rendered, too.
  const size_t n_messages = std::min(n_system + 1, messages.size());
  if (n_system < n_messages) messages[n_system].content.assign(1, 'A');
  const absl::StatusOr<std::string> one = writer->Text(n_messages, /*opens_answer=*/false);
  if (n_system < n_messages) messages[n_system].content.assign(1, 'B');
  const absl::StatusOr<std::string> two = writer->Text(n_messages, /*opens_answer=*/false);
  if (!one.ok() || !two.ok()) return "";
  return one->substr(0, static_cast<size_t>(std::ranges::mismatch(*one, *two).in1 - one->begin()));
}

}  // namespace ovq::server

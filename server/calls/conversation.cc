#include "server/calls/conversation.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/answers/marker.h"
#include "server/calls/answer_tools.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

// An error of the template, or of a field that it names first. Its text may quote the caller, so
// the log gets the field's name only.
absl::Status TemplateError(const std::string& path, const absl::Status& why) {
  std::string field = path;
  absl::string_view text = why.message();
  for (const char* const name : {"tools_json", "template_args_json"}) {
    if (absl::ConsumePrefix(&text, absl::StrCat(name, ": "))) field = absl::StrCat(path, ".", name);
  }
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, ": ", text));
  return engine::WithLogText(engine::WithFacts(status, {.field = field}),
                             absl::StrCat(field, ": refused"));
}

absl::Status HistoryMismatch(const std::string& path, std::string_view why) {
  const std::string field = path + ".known";
  return engine::WithFacts(
      absl::FailedPreconditionError(absl::StrCat(field, ": ", std::string(why))), {.field = field});
}

constexpr size_t kMaxRoles = 16;  // different ones in a conversation, each of which is tried out

jinja::ChatMessage ToMessage(const v1::ChatMessage& from) {
  jinja::ChatMessage to = {.role = from.role(),
                           .content = from.content(),
                           .reasoning = from.reasoning(),
                           .tool_call_id = from.tool_call_id(),
                           .name = from.name()};
  for (const v1::ToolCall& call : from.tool_calls()) {
    to.tool_calls.push_back(
        {.id = call.id(), .name = call.name(), .arguments_json = call.arguments_json()});
  }
  if (!to.tool_calls.empty() && to.content->empty()) to.content.reset();
  return to;
}

// The role of instructions for which the template has no place. No caller's message has it.
constexpr char kJoinsUser[] = "";

// Returns the messages with such instructions behind the text of the user's message before them,
// else before that of the user's message after them, else as a user's message of their own.
std::vector<jinja::ChatMessage> JoinInstructions(std::span<const jinja::ChatMessage> messages) {
  std::vector<jinja::ChatMessage> shown;
  bool is_open = false;  // the last one shown has nothing but instructions
  for (const jinja::ChatMessage& message : messages) {
    const bool joins = message.role == kJoinsUser;
    const bool meets = !shown.empty() && shown.back().role == "user" &&
                       (joins || (is_open && message.role == "user"));
    if (meets) {
      std::string text =
          absl::StrCat(shown.back().content.value_or(""), "\n\n", message.content.value_or(""));
      if (!joins) shown.back() = message;
      shown.back().content = std::move(text);
    } else {
      shown.push_back(message);
      if (joins) shown.back().role = "user";
    }
    is_open = joins && (is_open || !meets);
  }
  return shown;
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
    Writer writer(*format, path, from,
                  absl::ToTM(engine.config().options.clock.wall(), absl::LocalTimeZone()));
    for (const v1::ChatMessage& message : from.messages()) {
      writer.messages.push_back(ToMessage(message));
    }
    RETURN_IF_ERROR(engine::CheckConversation(
        writer.messages, from.known(),
        {.tools = std::ssize(from.tools_json()), .args = std::ssize(from.template_args_json())},
        path));
    if (from.tool_choice() != v1::TOOL_CHOICE_NONE) {
      writer.tools_json_ = ShownTools(from.tools_json());
    }
    RETURN_IF_ERROR(writer.CheckRoles());
    return writer;
  }

  absl::StatusOr<std::string> Text(size_t n_messages, bool opens_answer) const {
    std::span<const jinja::ChatMessage> shown = std::span(messages).first(n_messages);
    std::vector<jinja::ChatMessage> joined;
    if (std::ranges::find(shown, kJoinsUser, &jinja::ChatMessage::role) != shown.end()) {
      shown = joined = JoinInstructions(shown);
    }
    absl::StatusOr<std::string> text = format_.Render({.messages = shown,
                                                       .tools_json = tools_json_,
                                                       .args_json = from_.template_args_json(),
                                                       .opens_answer = opens_answer},
                                                      now_);
    if (!text.ok()) return TemplateError(path_, text.status());
    return text;
  }

  // The end of the text of all messages that is there only because it opens an answer.
  std::string Opened(const std::string& text) const {
    const absl::StatusOr<std::string> closed = Text(messages.size(), /*opens_answer=*/false);
    if (!closed.ok()) return "";
    return std::string(std::ranges::mismatch(text, *closed).in1, text.end());
  }

  // The text of all messages behind the content and the calls of message `i`, an answer.
  absl::StatusOr<std::string> TextBehind(size_t i, bool opens_answer) const {
    Writer other = *this;
    jinja::ChatMessage& answer = other.messages[i];
    answer.reasoning.clear();
    // Stands for what the answer said; no message has it.
    std::string mark = "zq0answer0zq";
    const auto has_mark = [&](const jinja::ChatMessage& message) {
      return message.content && absl::StrContains(*message.content, mark);
    };
    while (std::ranges::any_of(messages, has_mark)) mark += 'z';
    if (answer.tool_calls.empty()) {
      answer.content = mark;
    } else {
      answer.tool_calls.back().arguments_json = absl::StrCat("{\"a\": \"", mark, "\"}");
    }
    ASSIGN_OR_RETURN(std::string text, other.Text(messages.size(), opens_answer));
    const size_t at = text.rfind(mark);
    if (at == text.npos) {
      return HistoryMismatch(path_, absl::StrCat("the chat template writes nothing of messages[", i,
                                                 "], the answer that the session holds"));
    }
    return text.substr(at + mark.size());
  }

  std::vector<jinja::ChatMessage> messages;

 private:
  Writer(const jinja::ChatFormat& format, const std::string& path, const v1::Conversation& from,
         const std::tm& now)
      : format_(format), path_(path), from_(from), now_(now) {}

  // Refuses a message that the template would write nothing of, as the model would not see it.
  // Instructions find a place all the same: "developer" is "system" where the template does not
  // write it, and a "system" that it does not write there is "user" or joins a user's message.
  absl::Status CheckRoles() {
    using jinja::RoleUse;
    std::map<std::string, RoleUse> uses = {{"user", RoleUse::kWritten},
                                           {"assistant", RoleUse::kWritten}};
    const auto use_of = [&](const std::string& role) {
      const auto [entry, is_new] = uses.try_emplace(role, RoleUse::kWritten);
      if (is_new && uses.size() <= kMaxRoles) entry->second = format_.UseOfRole(role, now_);
      return entry->second;
    };
    std::optional<std::string> later_system;
    for (size_t i = 0; i < messages.size(); ++i) {
      std::string& role = messages[i].role;
      if (role == "developer" && use_of(role) != RoleUse::kWritten) role = "system";
      const RoleUse use = use_of(role);
      const std::string field = absl::StrCat(path_, ".messages[", i, "].role");
      if (uses.size() > kMaxRoles) {
        return engine::BadField(field, absl::StrCat("at most ", kMaxRoles, " different roles"),
                                "more");
      }
      if (role == "system" && i > 0) {
        if (!later_system) later_system = RoleOfLaterSystem();
        role = *later_system;
      } else if (role == "system" && use != RoleUse::kWritten) {
        role = kJoinsUser;
      } else if (use == RoleUse::kPassedOver) {
        return engine::BadField(field, "a role that the model's chat template writes",
                                Quoted(role));
      }  // A role that is refused is told in the template's own words.
    }
    return absl::OkStatus();
  }

  std::string RoleOfLaterSystem() const {
    for (const char* role : {"system", "user"}) {
      if (format_.WritesLater(role, now_)) return role;
    }
    return kJoinsUser;
  }

  const jinja::ChatFormat& format_;
  const std::string& path_;
  const v1::Conversation& from_;
  const std::tm now_;
  std::string tools_json_;  // as the template gets them
};

// Returns the text behind the last call of an answer, as the template writes it, without the
// rest of the call itself.
std::string_view BehindCalls(std::string_view text, const answers::CallSyntax& calls) {
  const answers::Marker end(calls.end);
  if (!end.empty()) return answers::CutBehind(text, calls.end);
  return text.substr(std::min(text.find_first_not_of("\"}])"), text.size()));
}

}  // namespace

PromptPlace FindPromptPlace(engine::Engine& engine, const std::string& session_id,
                            const std::string& tenant) {
  const absl::StatusOr<engine::SessionInfo> session = engine.sessions().Get(session_id, tenant);
  if (!session.ok()) {
    // One that is created meanwhile is empty.
    return {.at_start = absl::IsNotFound(session.status()),
            .in_session = true,
            .session = session.status()};
  }
  return {.at_start = session->position == 0,
          .in_session = true,
          .keeps_tokens = session->keeps_tokens,
          .last_token = session->last_token};
}

namespace {

bool OpensAnswer(const v1::Conversation& conversation) {
  return !conversation.has_add_generation_prompt() || conversation.add_generation_prompt();
}

absl::StatusOr<PromptText> TemplateText(const v1::Conversation& conversation,
                                        const std::string& path, const PromptPlace& place,
                                        const engine::Engine& engine) {
  RETURN_IF_ERROR(place.session);
  ASSIGN_OR_RETURN(const Writer writer, Writer::Make(conversation, path, engine));
  const size_t known = conversation.known();
  if ((known == 0) != place.at_start) {
    return HistoryMismatch(path, known == 0
                                     ? "expected how many of the messages the session, which "
                                       "has tokens, holds; got 0"
                                     : "expected 0, as there is no session with tokens");
  }
  const bool opens_answer = OpensAnswer(conversation);
  if (known == 0 || writer.messages[known - 1].role != "assistant") {
    ASSIGN_OR_RETURN(std::string text, writer.Text(writer.messages.size(), opens_answer));
    if (known == 0) {
      std::string opened = opens_answer ? writer.Opened(text) : "";
      return PromptText{.text = std::move(text), .opened = std::move(opened)};
    }
    ASSIGN_OR_RETURN(const std::string read, writer.Text(known, /*opens_answer=*/false));
    if (text.starts_with(read)) return PromptText{.text = text.substr(read.size())};
    if (place.keeps_tokens) return PromptText{.text = std::move(text), .rewrites = true};
    const auto differs = std::ranges::mismatch(text, read).in1 - text.begin();
    return HistoryMismatch(
        path, absl::StrCat("the chat template no longer writes the known messages as "
                           "the session has read them: their texts differ at byte ",
                           differs, "; a session with keep_tokens would go back to there"));
  }
  ASSIGN_OR_RETURN(std::string behind, writer.TextBehind(known - 1, opens_answer));
  if (!writer.messages[known - 1].tool_calls.empty()) {
    behind = BehindCalls(behind, engine.model().answer_syntax.calls);
  }
  // The session has the answer's end-of-sequence token already, and the marks before it.
  if (place.last_token.has_value() && engine.model().tokenizer != nullptr) {
    const std::map<int32_t, std::string> specials = engine.model().tokenizer->special_tokens();
    const auto end = specials.find(*place.last_token);
    if (end != specials.end() && !end->second.empty()) {
      const size_t at = behind.find(end->second);
      const std::string_view before = std::string_view(behind).substr(0, at);
      const std::string& mark = engine.model().answer_syntax.content_end;
      if (at != behind.npos && (before.empty() || before == mark)) {
        behind.erase(0, at + end->second.size());
      }
    }
  }
  return PromptText{.text = std::move(behind)};
}

}  // namespace

absl::StatusOr<PromptText> NewText(const v1::Conversation& conversation, const std::string& path,
                                   const PromptPlace& place, const engine::Engine& engine) {
  ASSIGN_OR_RETURN(PromptText prompt, TemplateText(conversation, path, place, engine));
  if (!OpensAnswer(conversation)) return prompt;
  prompt.begun = answers::BegunAnswer(prompt.text, engine.model().answer_syntax);
  return prompt;
}

std::string SystemText(const v1::Conversation& conversation, const engine::Engine& engine) {
  const std::string path;  // its errors are dropped
  absl::StatusOr<Writer> writer = Writer::Make(conversation, path, engine);
  if (!writer.ok()) return "";
  std::vector<jinja::ChatMessage>& messages = writer->messages;
  const auto other = std::ranges::find_if(messages, [](const jinja::ChatMessage& message) {
    return message.role != "system" && message.role != "developer" && message.role != kJoinsUser;
  });
  const auto n_system = static_cast<size_t>(other - messages.begin());
  // Templates may refuse to render system messages alone, so one more message is rendered, too.
  const size_t n_messages = std::min(n_system + 1, messages.size());
  if (n_system < n_messages) messages[n_system].content = "A";
  const absl::StatusOr<std::string> one = writer->Text(n_messages, /*opens_answer=*/false);
  if (n_system < n_messages) messages[n_system].content = "B";
  const absl::StatusOr<std::string> two = writer->Text(n_messages, /*opens_answer=*/false);
  if (!one.ok() || !two.ok()) return "";
  return one->substr(0, static_cast<size_t>(std::ranges::mismatch(*one, *two).in1 - one->begin()));
}

}  // namespace ovq::server

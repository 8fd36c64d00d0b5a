#include "clients/chat/options.h"

#include <google/protobuf/text_format.h>

#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "clients/chat/line_editor.h"

namespace ovq::clients {
namespace {

constexpr int64_t kMaxSeconds = 315'576'000'000;            // upper bound of a protobuf Duration
constexpr int64_t kMostConstraintBytes = int64_t{1} << 20;  // the server has a limit of its own

// Parses a text for the server: messages hold valid UTF-8 only.
std::optional<std::string> ParseUtf8(std::string_view text) {
  return FirstInvalidUtf8(text) ? std::nullopt : ParseText(text);
}

void AddConversation(Flags& flags, ChatOptions& o) {
  AddConnection(flags, o.connect);
  const auto any_text = [](std::string_view text) { return std::optional(std::string(text)); };
  flags.Add("prompt", "TEXT",
            ReadTo([&o](const auto& text) { o.prompt = text; }, "any text", any_text),
            "one question on the command line, then exit");
  flags.Add("file", "PATH", Text(o.file, "a file"),
            "one question from a file, used byte for byte, then exit");
  flags.AddSwitch("interactive", o.interactive,
                  "a turn per line of input, also when that is not a terminal");
  flags.AddSwitch(
      "messages", o.messages,
      "questions are a user's messages, written as the model's chat template does; in new\n"
      "sessions. A conversation on a terminal does so where the model has one");
  flags.AddSwitch(
      "text", o.as_text,
      "questions are text that the model goes on from, also where it has a chat template");
  flags.Add("system", "TEXT",
            ReadTo(
                [&o](const auto& text) {
                  o.system = text;
                  o.messages = true;
                },
                "a text in UTF-8", ParseUtf8),
            "a system message before the first question; means --messages");
  flags.Add("session", "ID",
            ReadTo([&o](const auto& id) { o.open.set_session_id(id); }, "an id", ParseUtf8),
            "continue this session; it outlives this program");
  flags.AddSwitch(
      "keep-session", [&o] { o.open.set_keep_session(true); },
      "keep the new session afterwards and print its id");
  flags.Add(
      "ttl", "SECONDS",
      NumberTo<int64_t>([&o](auto s) { o.open.mutable_ttl()->set_seconds(s); }, 1, kMaxSeconds),
      "idle time after which a kept session is deleted", "the server's");
  flags.Add("memory", "NAME",
            ReadTo([&o](const auto& name) { o.open.set_memory(name); }, "a name", ParseUtf8),
            "what the new session keeps of its context, of those that the server offers",
            "the server's");
  flags.Add("max-centroids", "N", NumberTo<uint32_t>([&o](auto n) { o.open.set_max_centroids(n); }),
            "dictionary cap of the new session", "the model's");
  flags.Add("history", "FILE",
            ReadInto(
                o.history_file, "a file or ''",
                [](std::string_view text) { return std::optional(std::string(text)); },
                [](const std::string& held) { return held; }),
            "where what is typed on a terminal is kept for later runs; '' for nowhere");
}

// The flags write into the turn. The server checks ranges: its errors name field and range.
void AddSettings(Flags& flags, v1::ChatTurn& turn) {
  v1::SamplingParams& sampling = *turn.mutable_sampling();
  v1::StopConditions& stop = *turn.mutable_stop();
  v1::OutputOptions& output = *turn.mutable_output();
  flags.Add("max-tokens", "N", NumberTo<uint32_t>([&](auto n) { stop.set_max_tokens(n); }),
            "longest answer", "256");
  flags.Add("temperature", "T", NumberTo<float>([&](auto t) { sampling.set_temperature(t); }),
            "0 = always the likeliest token", "1");
  flags.Add("top-k", "K", NumberTo<uint32_t>([&](auto k) { sampling.set_top_k(k); }),
            "draw from the K likeliest tokens; 0 = all", "0");
  flags.Add("top-p", "P", NumberTo<float>([&](auto p) { sampling.set_top_p(p); }),
            "draw from the likeliest tokens that add up to P", "1");
  flags.Add("min-p", "P", NumberTo<float>([&](auto p) { sampling.set_min_p(p); }),
            "drop tokens below P times the likeliest one", "0");
  flags.Add("typical-p", "P", NumberTo<float>([&](auto p) { sampling.set_typical_p(p); }),
            "draw from the tokens of about the expected surprise that add up to P", "1");
  flags.Add("repetition-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_repetition_penalty(x); }),
            "above 1: less of what prompt and answer have held", "1");
  flags.Add("presence-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_presence_penalty(x); }),
            "above 0: less of what the answer has held", "0");
  flags.Add("frequency-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_frequency_penalty(x); }),
            "above 0: the less, the more often the answer has held it", "0");
  flags.Add("seed", "N", NumberTo<uint64_t>([&](auto n) { sampling.set_seed(n); }),
            "of the random numbers", "drawn by the server");
  flags.Add(
      "stop", "TEXT",
      ReadTo([&](const auto& text) { stop.add_stop_strings(text); }, "a text in UTF-8", ParseUtf8),
      "end the answer before this text; may be given several times");
  const auto file_text = [](std::string_view path) -> std::optional<std::string> {
    absl::StatusOr<std::string> text = ReadFileOrPipe(std::string(path), kMostConstraintBytes);
    return text.ok() && !FirstInvalidUtf8(*text) ? std::optional(*std::move(text)) : std::nullopt;
  };
  constexpr const char* kFile = "a file that can be read, of at most 1 MiB, in UTF-8";
  v1::SamplingParams* const to = &sampling;
  flags.Add("json-schema", "FILE",
            ReadTo([to](const auto& text) { to->mutable_constraint()->set_json_schema(text); },
                   kFile, file_text),
            "the answer is JSON of this schema", "none");
  flags.Add("grammar", "FILE",
            ReadTo([to](const auto& text) { to->mutable_constraint()->set_grammar(text); }, kFile,
                   file_text),
            "the answer has the form of this grammar (GBNF)", "none");
  flags.Add("regex", "REGEX",
            ReadTo([to](const auto& text) { to->mutable_constraint()->set_regex(text); },
                   "a text in UTF-8", ParseUtf8),
            "the answer matches this regular expression", "none");
  flags.AddSwitch(
      "ignore-eos", [&] { stop.set_ignore_eos(true); }, "never draw the end-of-sequence token");
  flags.AddSwitch(
      "logprobs", [&] { output.set_logprobs(true); },
      "list every token's id and log-probability on stderr after the answer");
}

// The field that holds a setting and its message within the turn; both null if no setting has the
// name. kind: of the field's message, where that is a constraint, the kind that the setting sets.
struct SettingField {
  google::protobuf::Message* message = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;
  const google::protobuf::FieldDescriptor* kind = nullptr;
};

SettingField FindSettingField(v1::ChatTurn& turn, const std::string& name) {
  const std::string field_name =
      name == "stop" ? "stop_strings" : absl::StrReplaceAll(name, {{"-", "_"}});
  for (google::protobuf::Message* message : std::initializer_list<google::protobuf::Message*>{
           turn.mutable_sampling(), turn.mutable_stop(), turn.mutable_output()}) {
    const auto* field = message->GetDescriptor()->FindFieldByName(field_name);
    if (field != nullptr) return {message, field};
  }
  const auto* kind = v1::Constraint::descriptor()->FindFieldByName(field_name);
  if (kind == nullptr) return {};
  google::protobuf::Message* const sampling = turn.mutable_sampling();
  return {sampling, sampling->GetDescriptor()->FindFieldByName("constraint"), kind};
}

std::string ValueText(const SettingField& of) {
  const auto* reflection = of.message->GetReflection();
  if (of.kind != nullptr) {
    const google::protobuf::Message& constraint = reflection->GetMessage(*of.message, of.field);
    return constraint.GetReflection()->HasField(constraint, of.kind) ? "given" : "";
  }
  std::vector<std::string> values;
  const bool repeated = of.field->is_repeated();
  const int count = repeated ? reflection->FieldSize(*of.message, of.field)
                             : reflection->HasField(*of.message, of.field);
  for (int i = 0; i < count; ++i) {
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(*of.message, of.field, repeated ? i : -1,
                                                          &value);
    values.push_back(value);
  }
  return absl::StrJoin(values, ", ");
}

std::string HelpText();

Flags Declare(ChatOptions& options) {
  options.history_file = DefaultHistoryFile();
  Flags flags;
  AddConversation(flags, options);
  AddSettings(flags, options.turn);
  AddHelpAndVersion(flags, kChat, HelpText);
  return flags;
}

std::string HelpText() {
  ChatOptions options;
  return absl::StrCat(
      "Usage: ovq-chat [flags]\n"
      "A conversation with an ovq-server. On a terminal: what is typed or pasted until Enter is a\n"
      "turn, the answer comes on stdout. With --prompt, --file or input from a pipe: one "
      "question,\n"
      "one answer.\n"
      "On a terminal lines can be edited (keys as in bash), Up brings earlier ones back, "
      "Alt-Enter\n"
      "begins a new line. Ctrl-C cancels the running answer, /help lists the commands; /quit or\n"
      "Ctrl-D ends the conversation.\n"
      "Exit status: 0 fine, 1 error, 2 bad usage, 130 interrupted.\n\n",
      Declare(options).Help());
}

}  // namespace

absl::StatusOr<ChatOptions> ParseOptions(std::span<const std::string> args) {
  ChatOptions options;
  Flags flags = Declare(options);
  RETURN_IF_ERROR(flags.Read(args));
  RETURN_IF_ERROR(CheckConnection(options.connect));
  if (options.messages && options.open.has_session_id()) {
    return absl::InvalidArgumentError(
        "--messages and --system are for new sessions: not with "
        "--session");
  }
  if (options.messages && options.as_text) {
    return absl::InvalidArgumentError("--text does not go with --messages and --system");
  }
  if (options.prompt.has_value() + options.file.has_value() + options.interactive > 1) {
    return absl::InvalidArgumentError("give one of --prompt, --file and --interactive");
  }
  if (flags.given("json-schema") + flags.given("grammar") + flags.given("regex") > 1) {
    return absl::InvalidArgumentError("give one of --json-schema, --grammar and --regex");
  }
  return options;
}

absl::Status ChangeSetting(v1::ChatTurn& turn, const std::string& name, const std::string& value) {
  Flags flags;
  AddSettings(flags, turn);
  const SettingField of = FindSettingField(turn, name);
  if (of.field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no setting ", name, "; /set lists them"));
  }
  if (value == "default") {
    // One field holds any kind of constraint: another kind than this one stays.
    if (of.kind != nullptr && ValueText(of).empty()) return absl::OkStatus();
    of.message->GetReflection()->ClearField(of.message, of.field);
    return absl::OkStatus();
  }
  if (of.field->type() != google::protobuf::FieldDescriptor::TYPE_BOOL) {
    return flags.Read(std::vector<std::string>{absl::StrCat("--", name, "=", value)});
  }
  if (value != "yes") {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected yes or default"));
  }
  return flags.Read(std::vector<std::string>{absl::StrCat("--", name)});
}

std::string SettingsText(v1::ChatTurn& turn) {
  Flags flags;
  AddSettings(flags, turn);
  std::string text;
  for (const Setting& setting : flags.settings()) {
    const std::string value = ValueText(FindSettingField(turn, setting.name));
    absl::StrAppendFormat(&text, "  %-19s %s\n", setting.name,
                          value.empty() ? absl::StrCat(setting.value, " (default)") : value);
  }
  return text;
}

}  // namespace ovq::clients

// Fuzzes the server's inputs from outside its protocols: flags, environment, a configuration file,
// trace headers, and texts that end up in the log.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"
#include "server/options.h"
#include "server/telemetry/trace_context.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"
#include "tests/server/telemetry/log_file.h"

namespace ovq::fuzz {
namespace {

// Words are arguments; "@NAME=VALUE" sets an environment variable; "%" starts the configuration
// file.
void Options(Bytes& bytes) {
  static const model::test::TempFolder folder;
  std::vector<std::string> args;
  std::map<std::string, std::string, std::less<>> environment;
  while (!bytes.empty()) {
    const std::string word(bytes.Word());
    const size_t equals = word.find('=');
    if (word.starts_with('@') && equals != std::string::npos) {
      environment[word.substr(1, equals - 1)] = word.substr(equals + 1);
    } else if (word.starts_with('%')) {
      folder.Write("settings", word.substr(1));
      args.insert(args.end(), {"--config", folder.file("settings")});
    } else {
      args.push_back(word);
    }
  }
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
  const absl::StatusOr<server::CommandLine> line = server::ParseCommandLine(args, lookup);
  if (!line.ok()) {
    Check(!line.status().message().empty(), "an error says what is wrong");
    return;
  }
  if (line->action == server::CommandLine::Action::kHelp) {
    Check(!FirstInvalidUtf8(server::HelpText()), "the help is text");
  }
  // The output of --check-config for a command line is itself a valid command line.
  if (line->action != server::CommandLine::Action::kServe) return;
  std::vector<std::string> shown;
  for (const Setting& setting : line->settings) {
    if (setting.origin != "default") shown.push_back("--" + setting.name + "=" + setting.value);
  }
  const absl::StatusOr<server::CommandLine> again =
      server::ParseCommandLine(shown, [](const std::string&) { return std::nullopt; });
  Check(again.ok(), "which is taken");
  for (size_t i = 0; i < line->settings.size(); ++i) {
    Check(again->settings[i].value == line->settings[i].value, "and means the same");
  }
}

void Trace(Bytes& bytes) {
  const std::string parent(bytes.Word()), state(bytes.Rest());
  const server::Span span = server::StartSpan(parent, state);
  const server::Span below = server::StartSpan(span.traceparent(), span.state);
  Check(span.trace_id.size() == 32 && span.span_id.size() == 16, "ids of the right length");
  Check(below.trace_id == span.trace_id && below.parent_id == span.span_id, "the trace goes on");
  Check(below.sampled == span.sampled && below.state == span.state, "as the caller said");
  (void)server::IsRequestId(parent);
}

void Lines(Bytes& bytes) {
  const server::LogFormat format =
      bytes.Upto(1) == 0 ? server::LogFormat::kJson : server::LogFormat::kText;
  const auto level = static_cast<server::LogLevel>(bytes.Upto(3));
  const int times = 1 + bytes.Upto(7);  // number of times
  const std::string message(bytes.Word()), value(bytes.Rest());
  server::test::LogFile file;
  int64_t written = 0;
  {
    server::Log log({.format = format, .level = server::LogLevel::kDebug, .lines_per_second = 2},
                    file.fd());
    for (int i = 0; i < times; ++i) {
      log.Write(level, server::LogKind::kCall, message,
                {{"value", value}, {"n", int64_t{1}}, {"x", 0.5}, {"is", i == 0}});
    }
    Check(log.Flush(absl::Seconds(10)), "the lines are written");
    const server::LogCounts counts = log.counts();
    written = counts.written[static_cast<size_t>(level)];
    Check(written + counts.over_rate == times, "and counted");
  }
  const std::string text = file.Text();
  Check(text.ends_with('\n') && std::ranges::count(text, '\n') == written, "lines");
  Check(!FirstInvalidUtf8(text), "of valid text");
  if (format == server::LogFormat::kText) return;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    Check(json.is_object() && json["n"] == 1 && json["value"].is_string(), "of JSON");
  }
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ovq::fuzz::Bytes bytes(data, size);
  switch (bytes.Upto(2)) {
    case 0:
      ovq::fuzz::Options(bytes);
      break;
    case 1:
      ovq::fuzz::Trace(bytes);
      break;
    default:
      ovq::fuzz::Lines(bytes);
  }
  return 0;
}

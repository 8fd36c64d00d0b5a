// How one line looks.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/telemetry/log.h"

namespace ovq {
namespace {

using Json = nlohmann::ordered_json;

std::string Cut(std::string_view text) {
  if (text.size() <= Log::kMaxTextBytes) return std::string(text);
  return std::string(text.substr(0, Log::kMaxTextBytes)) + "...";
}

// In ASCII: control characters, those that a terminal takes for commands included, and all beyond
// ASCII as escapes.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Json ToJson(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Cut(*text);
  return std::visit([](const auto& other) { return Json(other); }, value);
}

bool IsPlain(std::string_view text, std::string_view special) {
  for (const char c : text) {
    if (c < ' ' || c > '~' || special.find(c) != std::string_view::npos) return false;
  }
  return true;
}

std::string TextOf(const LogValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && !text->empty() && text->size() <= Log::kMaxTextBytes &&
      IsPlain(*text, " \"=\\")) {
    return *text;
  }
  return Dump(ToJson(value));
}

std::string TextLine(LogLevel level, std::string_view message, const LogFields& fields) {
  std::string line = "ovq-server: ";
  if (level != LogLevel::kInfo) {
    absl::StrAppend(&line, kLogLevels[static_cast<size_t>(level)], ": ");
  }
  const std::string cut = Cut(message);
  if (IsPlain(cut, "")) {
    line += cut;
  } else {
    const std::string quoted = Dump(Json(cut));
    line.append(quoted, 1, quoted.size() - 2);
  }
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=", TextOf(field.value));
  }
  return line;
}

}  // namespace

std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, LogKind kind,
                          std::string_view message, const LogFields& fields) {
  if (format == LogFormat::kText) return TextLine(level, message, fields);
  Json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone());
  line["level"] = kLogLevels[static_cast<size_t>(level)];
  line["kind"] = kLogKinds[static_cast<size_t>(kind)];
  line["message"] = Cut(message);
  for (const LogField& field : fields) line[field.key] = ToJson(field.value);
  return Dump(line);
}

}  // namespace ovq

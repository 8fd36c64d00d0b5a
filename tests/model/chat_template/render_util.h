#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/chat_template.h"

namespace ovq::jinja::test {

using Json = nlohmann::ordered_json;

// 2026-03-07 09:05:03, a Saturday.
inline std::tm TestNow() {
  std::tm now = {};
  now.tm_year = 126;
  now.tm_mon = 2;
  now.tm_mday = 7;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 3;
  now.tm_wday = 6;
  now.tm_yday = 65;
  return now;
}

inline absl::StatusOr<std::string> Render(std::string_view text,
                                          const Json& variables = Json::object(),
                                          const RenderLimits& limits = {}) {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(text, "template");
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(variables, TestNow(), limits);
}

}  // namespace ovq::jinja::test

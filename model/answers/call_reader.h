// CallReader: reads one call of a CallForm, character by character.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "model/answers/answer_syntax.h"
#include "model/answers/marker.h"

namespace ovq::answers {

class CallReader {
 public:
  virtual ~CallReader() = default;

  enum class Result : uint8_t { kMore, kDone, kWrong };
  // Reads one character. kDone: it was the call's last. kWrong: it cannot be part of a call here.
  virtual Result Read(char c) = 0;

  std::string name;  // set before the first of the arguments
  bool has_name = false;
  std::string arguments;  // JSON that was read since the caller last took it; complete at kDone
  // At kDone: characters that are no part of the call, the last one read among them if it is none.
  // At kWrong: such characters if there are more than the last one.
  std::string unread;
};

// schemas: {tool: JSON schema of its arguments}. strict: tools of which a value that is no text is
// surely JSON, so that a marker within its strings is part of it. All outlive the reader.
std::unique_ptr<CallReader> MakeCallReader(const CallSyntax& syntax, const nlohmann::json& schemas,
                                           const std::set<std::string>& strict);

}  // namespace ovq::answers

// CallReader: reads one call of a CallForm, character by character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/answers/answer_syntax.h"

namespace ovq::answers {

inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Follows the characters of a text, whatever white space stands between them and before them.
class Marker {
 public:
  explicit Marker(std::string_view text);
  bool empty() const { return text_.empty(); }
  bool begun() const { return at_ > 0; }
  bool done() const { return at_ == text_.size(); }
  // Goes on with the character. False, without a change: it is not the marker's.
  bool Follow(char c);
  void Reset() { at_ = 0; }

 private:
  std::string text_;
  size_t at_ = 0;
};

class CallReader {
 public:
  virtual ~CallReader() = default;

  enum class Result : uint8_t { kMore, kDone, kWrong };
  // Reads one character. kDone: it was the call's last. kWrong: it cannot be part of a call here.
  virtual Result Read(char c) = 0;

  std::string name;  // set before the first of the arguments
  bool has_name = false;
  std::string arguments;  // JSON that was read since the caller last took it; complete at kDone
  std::string unread;     // at kDone and kWrong: characters that are no part of the call, the last
                          // one read among them if it is none
};

// schemas: {tool: JSON schema of its arguments}, and outlives the reader. forced_tool: the reader
// starts at the arguments of a call to this tool; empty for a whole call.
std::unique_ptr<CallReader> MakeCallReader(const CallSyntax& syntax, const nlohmann::json& schemas,
                                           const std::string& forced_tool);

}  // namespace ovq::answers

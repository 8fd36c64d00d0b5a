// Marker: a text that surrounds a part of an answer, in whatever white space a model writes it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ovq::answers {

// The id of the first call that templates are asked to write, which the texts around calls may
// have: in its place stands any id of that length, of letters and digits.
inline constexpr std::string_view kProbeCallId = "zqid00001";

inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Follows the characters of a text, whatever white space stands between them and before them, and
// whatever id in the place of kProbeCallId.
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
  std::string text_;  // without white space, an id as characters that stand for any
  size_t at_ = 0;
};

// The text behind the first place of the marker in it, or "" if it is not there.
std::string_view CutBehind(std::string_view text, std::string_view marker);

}  // namespace ovq::answers

#include "model/answers/marker.h"

#include "absl/strings/ascii.h"

namespace ovq::answers {
namespace {

constexpr char kIdCharacter = '\0';  // stands for one of an id, and is none of a template's

}  // namespace

Marker::Marker(std::string_view text) {
  while (!text.empty()) {
    const bool is_id = text.starts_with(kProbeCallId);
    if (is_id) {
      text_.append(kProbeCallId.size(), kIdCharacter);
    } else if (!IsSpace(text.front())) {
      text_ += text.front();
    }
    text.remove_prefix(is_id ? kProbeCallId.size() : 1);
  }
}

bool Marker::Follow(char c) {
  if (done()) return false;
  const bool is_next = text_[at_] == kIdCharacter
                           ? absl::ascii_isalnum(static_cast<unsigned char>(c))
                           : text_[at_] == c;
  if (is_next) {
    ++at_;
    return true;
  }
  return IsSpace(c);
}

std::string_view CutBehind(std::string_view text, std::string_view marker) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    Marker at(marker);
    size_t end = begin;
    while (end < text.size() && at.Follow(text[end])) ++end;
    if (at.done()) return text.substr(end);
  }
  return "";
}

}  // namespace ovq::answers

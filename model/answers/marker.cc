#include "model/answers/marker.h"

namespace ovq::answers {

Marker::Marker(std::string_view text) {
  for (const char c : text) {
    if (!IsSpace(c)) text_ += c;
  }
}

bool Marker::Follow(char c) {
  if (done()) return false;
  if (text_[at_] == c) {
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

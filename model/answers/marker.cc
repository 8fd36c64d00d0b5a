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

}  // namespace ovq::answers

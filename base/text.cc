#include "base/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ovq {

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxChars = 120;
  std::string text = absl::CEscape(std::string(name.substr(0, kMaxChars)));
  if (name.size() > kMaxChars) text += "...";
  return absl::StrCat("'", text, "'");
}

}  // namespace ovq

// Strings of JSON: what schemas say of them, and the languages of their decoded texts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/constraint/regular.h"

namespace ovq::constraint {

// A conjunction.
struct StringBounds {
  std::vector<std::string> patterns = {};  // each found somewhere in the text
  std::vector<std::string> formats = {};   // of the known ones
  int64_t least = 0;                       // code points
  std::optional<int64_t> most = {};

  bool has_form() const { return !patterns.empty() || !formats.empty(); }
  auto operator<=>(const StringBounds&) const = default;
};

bool IsKnownFormat(std::string_view format);
std::string KnownFormats();  // for messages

// Makes languages, and keeps them: schemas often say the same twice.
class StringLanguages {
 public:
  // depth: see RegexLanguage.
  StringLanguages(int depth, Budget& budget) : depth_(depth), budget_(budget) {}

  // The texts that hold a match. InvalidArgument for a pattern that is not supported.
  absl::StatusOr<const Language*> Pattern(const std::string& pattern);
  absl::StatusOr<const Language*> Texts(const StringBounds& bounds);

 private:
  absl::StatusOr<Language> MakeTexts(const StringBounds& bounds);

  const int depth_;
  Budget& budget_;
  std::map<std::string, Language> patterns_;
  std::map<StringBounds, Language> texts_;
};

}  // namespace ovq::constraint

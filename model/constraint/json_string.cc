#include "model/constraint/json_string.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/constraint/regex.h"

namespace ovq::constraint {
namespace {

// Days of months with leap years, hours up to 23, seconds up to 59.
constexpr char kDate[] =
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
constexpr char kTime[] =
    "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
constexpr char kHostLabel[] = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
// Up to six labels, of which the others have at most 36 characters: never more than 253 together,
// which would take an automaton of many states to count.
constexpr char kShortLabel[] = "[A-Za-z0-9]([A-Za-z0-9-]{0,34}[A-Za-z0-9])?";
constexpr char kByte[] = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

std::string Ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::string form =
      absl::StrCat("(", group, ":){7}", group, "|(", group, ":){1,7}:|:(:", group, "){1,7}|::");
  for (int before = 1; before <= 6; ++before) {
    absl::StrAppend(&form, "|(", group, ":){1,", before, "}(:", group, "){1,", 7 - before, "}");
  }
  return form;
}

// The regular expression of each format's whole text.
const std::map<std::string, std::string, std::less<>>& Formats() {
  static const auto& formats = *new std::map<std::string, std::string, std::less<>>{
      {"date", kDate},
      {"time", kTime},
      {"date-time", absl::StrCat(kDate, "T", kTime)},
      {"duration",
       "P([0-9]{1,9}W|([0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?|[0-9]{1,9}M([0-9]{1,9}D)?"
       "|[0-9]{1,9}D)(T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?"
       "|[0-9]{1,9}S))?|T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?"
       "|[0-9]{1,9}S))"},
      {"email",
       absl::StrCat("[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(",
                    kHostLabel, "\\.)+", kHostLabel)},
      {"hostname", absl::StrCat(kHostLabel, "(\\.", kShortLabel, "){0,5}")},
      {"ipv4", absl::StrCat(kByte, "(\\.", kByte, "){3}")},
      {"ipv6", Ipv6()},
      {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
  };
  return formats;
}

}  // namespace

bool IsKnownFormat(std::string_view format) { return Formats().contains(format); }

std::string KnownFormats() {
  return absl::StrJoin(Formats(), ", ", [](std::string* out, const auto& format) {
    absl::StrAppend(out, format.first);
  });
}

absl::StatusOr<const Language*> StringLanguages::Pattern(const std::string& pattern) {
  auto found = patterns_.find(pattern);
  if (found == patterns_.end()) {
    ASSIGN_OR_RETURN(Language language, RegexLanguage(pattern, Match::kSearch, depth_, budget_));
    found = patterns_.emplace(pattern, std::move(language)).first;
  }
  return &found->second;
}

absl::StatusOr<const Language*> StringLanguages::Texts(const StringBounds& bounds) {
  auto found = texts_.find(bounds);
  if (found == texts_.end()) {
    ASSIGN_OR_RETURN(Language language, MakeTexts(bounds));
    found = texts_.emplace(bounds, std::move(language)).first;
  }
  return &found->second;
}

absl::StatusOr<Language> StringLanguages::MakeTexts(const StringBounds& bounds) {
  ASSIGN_OR_RETURN(Language texts, TextsOfLength(bounds.least, bounds.most.value_or(-1), budget_));
  for (const std::string& pattern : bounds.patterns) {
    ASSIGN_OR_RETURN(const Language* matching, Pattern(pattern));
    ASSIGN_OR_RETURN(texts, Intersection(texts, *matching, budget_));
  }
  for (const std::string& name : bounds.formats) {
    ASSIGN_OR_RETURN(const Language valid, RegexLanguage(Formats().find(name)->second,
                                                         Match::kWhole, /*depth=*/16, budget_));
    ASSIGN_OR_RETURN(texts, Intersection(texts, valid, budget_));
  }
  return texts;
}

}  // namespace ovq::constraint

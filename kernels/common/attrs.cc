#include "kernels/common/attrs.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "base/text.h"

namespace ovq::kernels {
namespace {

std::string Describe(const Attrs::Value& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return absl::StrCat(v); }
    std::string operator()(const std::string& v) const { return absl::StrCat("\"", v, "\""); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return absl::StrCat("a list of ", v.size(), " integers");
    }
    std::string operator()(const std::vector<double>& v) const {
      return absl::StrCat("a list of ", v.size(), " numbers");
    }
    std::string operator()(const std::vector<std::string>& v) const {
      return absl::StrCat("a list of ", v.size(), " strings");
    }
    std::string operator()(const std::vector<std::vector<double>>& v) const {
      return absl::StrCat("a list of ", v.size(), " lists");
    }
  };
  return std::visit(Visitor{}, value);
}

// A list of numbers or integers; empty for anything else.
std::vector<double> Numbers(const Attrs::Value& value) {
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return *numbers;
  const auto* integers = std::get_if<std::vector<int64_t>>(&value);
  return integers ? std::vector<double>(integers->begin(), integers->end()) : std::vector<double>();
}

std::string Expected(std::string_view what, const Attrs::Value* got) {
  return absl::StrCat("expected ", std::string(what), got ? ", got " : ", but it is missing",
                      got ? Describe(*got) : "");
}

const FieldName* Named(std::span<const FieldName> names, std::string_view key) {
  const auto found = std::ranges::find(names, key, &FieldName::name);
  return found == names.end() ? nullptr : &*found;
}

}  // namespace

const Attrs::Value* Attrs::Find(std::string_view key) const {
  read_.insert(std::string(key));
  return Has(key) ? &values_.find(key)->second : nullptr;
}

bool Attrs::Has(std::string_view key) const {
  const auto it = values_.find(key);
  return it != values_.end() && !std::holds_alternative<std::monostate>(it->second);
}

void Attrs::Set(std::string key, Value value, std::string display_name) {
  if (!display_name.empty()) display_names_[key] = std::move(display_name);
  values_[std::move(key)] = std::move(value);
}

absl::Status Attrs::Error(std::string_view key, std::string_view what) const {
  const auto other = display_names_.find(key);
  const std::string name =
      other == display_names_.end() ? absl::StrCat(path_, std::string(key)) : other->second;
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", std::string(what)));
}

absl::Status Attrs::CheckAllRead() const {
  absl::Status unread;
  if (undecided_) return unread;
  for (const auto& [key, value] : values_) {
    if (!read_.contains(key)) AddProblems(unread, Error(key, "unknown field"));
  }
  return unread;
}

const Attrs::Value* AttrReader::Find(std::string_view key, const Attrs::Value* in_place) const {
  if (attrs_ == nullptr) return in_place;
  if (names_.empty()) return attrs_->Find(key);
  const FieldName* const field = Named(names_, key);
  if (field == nullptr) return nullptr;
  return field->is_filled ? in_place : attrs_->Find(field->in_file.empty() ? key : field->in_file);
}

void AttrReader::Fail(std::string_view key, std::string_view what) {
  if (!wrong_.emplace(key).second) return;
  const FieldName* const field = Named(names_, key);
  const std::string name(field && !field->in_file.empty() ? field->in_file : key);
  if (attrs_ != nullptr && (field == nullptr || !field->is_filled)) {
    return AddProblems(status_, attrs_->Error(name, what));
  }
  AddProblems(status_,
              absl::InvalidArgumentError(absl::StrCat(prefix_, name, ": ", std::string(what))));
}

// Fails a field whose value decides which other fields are read.
void AttrReader::FailChoice(std::string_view key, std::string_view what) {
  if (attrs_ != nullptr) attrs_->undecided_ = true;
  Fail(key, what);
}

bool AttrReader::ReadInt(std::string_view key, int64_t& value, int64_t min, int64_t max) {
  const Attrs::Value in_place(value), *const told = Find(key, &in_place);
  const int64_t* const number = std::get_if<int64_t>(told ? told : &in_place);
  const bool is_right = number && *number >= min && *number <= max;
  if (!is_right) Fail(key, Expected(absl::StrCat("an integer in [", min, ", ", max, "]"), told));
  value = is_right ? *number : min;
  return is_right;
}

bool AttrReader::ReadFloat(std::string_view key, double& value, double min, double max) {
  const Attrs::Value in_place(value), *const told = Find(key, &in_place);
  const Attrs::Value& read = told ? *told : in_place;
  const auto* const integer = std::get_if<int64_t>(&read);
  const auto* const real = std::get_if<double>(&read);
  const double number = integer ? static_cast<double>(*integer) : real ? *real : NAN;
  const bool is_right = number >= min && number <= max;
  if (!is_right) Fail(key, Expected(absl::StrCat("a number in [", min, ", ", max, "]"), told));
  value = is_right ? number : min;
  return is_right;
}

int64_t AttrReader::Int(std::string_view key, int64_t min, int64_t max) {
  int64_t value = min - 1;  // missing
  return ReadInt(key, value, min, max) ? value : 0;
}

int64_t AttrReader::IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  return Has(key) ? Int(key, min, max) : fallback;
}

double AttrReader::FloatOr(std::string_view key, double fallback, double min, double max) {
  if (!Has(key)) return fallback;
  return ReadFloat(key, fallback, min, max) ? fallback : 0;
}

std::vector<double> AttrReader::FloatsOr(std::string_view key, std::vector<double> fallback,
                                         double min, double max) {
  const Attrs::Value* value = Find(key);
  if (!value) return fallback;
  std::vector<double> list = Numbers(*value);
  if (list.size() != fallback.size()) {
    Fail(key, Expected(absl::StrCat("a list of ", fallback.size(), " numbers"), value));
    return fallback;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (std::isnan(list[i])) {
      list[i] = fallback[i];
    } else if (!(list[i] >= min && list[i] <= max)) {
      Fail(key, absl::StrCat("expected numbers in [", min, ", ", max, "], one is ", list[i]));
    }
  }
  return list;
}

std::vector<std::vector<double>> AttrReader::FloatListsOr(std::string_view key, size_t n,
                                                          double fallback, double min, double max) {
  const Attrs::Value* value = Find(key);
  if (!value) return {n, {fallback}};
  std::vector<std::vector<double>> lists;
  for (const double number : Numbers(*value)) lists.push_back({number});
  if (const auto* nested = std::get_if<std::vector<std::vector<double>>>(value)) lists = *nested;
  if (lists.size() != n) {
    Fail(key, Expected(absl::StrCat("a list of ", n, " numbers, or lists of numbers"), value));
    return {n, {fallback}};
  }
  for (const std::vector<double>& list : lists) {
    if (list.empty()) Fail(key, "expected numbers or lists of numbers, one is an empty list");
    for (const double number : list) {
      if (number >= min && number <= max) continue;
      Fail(key, absl::StrCat("expected numbers in [", min, ", ", max, "], one is ", number));
    }
  }
  return lists;
}

template <class T>
T AttrReader::ValueOr(std::string_view key, T fallback, std::string_view expected) {
  const Attrs::Value* value = Find(key);
  if (!value) return fallback;
  if (const T* typed = std::get_if<T>(value)) return *typed;
  FailChoice(key, Expected(expected, value));
  return {};
}

bool AttrReader::BoolOr(std::string_view key, bool fallback) {
  return ValueOr(key, fallback, "true or false");
}

bool AttrReader::FlagOr(std::string_view key, bool fallback) {
  const Attrs::Value* value = Find(key);
  const auto* number = value ? std::get_if<int64_t>(value) : nullptr;
  if (number && (*number == 0 || *number == 1)) return *number == 1;
  if (number) FailChoice(key, Expected("true, false, 0 or 1", value));
  return number ? false : BoolOr(key, fallback);
}

std::string AttrReader::StringOr(std::string_view key, std::string fallback) {
  return ValueOr(key, std::move(fallback), "a string");
}

int AttrReader::ChoiceOr(std::string_view key, std::span<const std::string_view> choices,
                         int fallback) {
  const std::string name = StringOr(key, std::string(choices[fallback]));
  for (size_t i = 0; i < choices.size(); ++i) {
    if (name == choices[i]) return static_cast<int>(i);
  }
  const std::string known = absl::StrJoin(
      choices, ", ", [](std::string* out, std::string_view choice) { out->append(choice); });
  const std::string what = absl::StrCat("unknown value ", Quoted(name), "; known: ", known);
  choices.size() > 1 ? FailChoice(key, what) : Fail(key, what);
  return 0;
}

std::vector<std::string> AttrReader::Strings(std::string_view key) {
  constexpr std::string_view kExpected = "a list of strings";
  if (!Find(key)) Fail(key, Expected(kExpected, nullptr));
  return ValueOr(key, std::vector<std::string>(), kExpected);
}

std::vector<int64_t> AttrReader::IntPerLayer(std::string_view key, int n, int64_t min,
                                             int64_t max) {
  const Attrs::Value* value = Find(key);
  const auto* list = value ? std::get_if<std::vector<int64_t>>(value) : nullptr;
  if (!list) return std::vector<int64_t>(n, Int(key, min, max));
  if (static_cast<int>(list->size()) != n) {
    Fail(key, Expected(absl::StrCat("one entry for each of the ", n, " layers"), value));
  }
  for (int64_t entry : *list) {
    if (entry >= min && entry <= max) continue;
    Fail(key, absl::StrCat("expected integers in [", min, ", ", max, "], one is ", entry));
  }
  return wrong_.contains(key) ? std::vector<int64_t>(n, 0) : *list;
}

}  // namespace ovq::kernels

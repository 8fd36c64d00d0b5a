#include "kernels/common/attrs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ovq {
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
    std::string operator()(const std::vector<std::string>& v) const {
      return absl::StrCat("a list of ", v.size(), " strings");
    }
  };
  return std::visit(Visitor{}, value);
}

absl::Status Wrong(const std::string& path, std::string_view key, const std::string& expected,
                   const Attrs::Value* value) {
  return absl::InvalidArgumentError(absl::StrCat(path, std::string(key), ": expected ", expected,
                                                 value ? ", got " : ", but it is missing",
                                                 value ? Describe(*value) : ""));
}

}  // namespace

const Attrs::Value* Attrs::Find(std::string_view key) const {
  read_.insert(std::string(key));
  const auto it = values_.find(key);
  if (it == values_.end() || std::holds_alternative<std::monostate>(it->second)) return nullptr;
  return &it->second;
}

bool Attrs::Has(std::string_view key) const {
  const auto it = values_.find(key);
  return it != values_.end() && !std::holds_alternative<std::monostate>(it->second);
}

absl::StatusOr<int64_t> Attrs::Int(std::string_view key, int64_t min, int64_t max) const {
  const Value* value = Find(key);
  const int64_t* number = value ? std::get_if<int64_t>(value) : nullptr;
  if (!number || *number < min || *number > max) {
    return Wrong(path_, key, absl::StrCat("an integer in [", min, ", ", max, "]"), value);
  }
  return *number;
}

absl::StatusOr<int64_t> Attrs::IntOr(std::string_view key, int64_t fallback, int64_t min,
                                     int64_t max) const {
  return Find(key) ? Int(key, min, max) : fallback;
}

absl::StatusOr<double> Attrs::FloatOr(std::string_view key, double fallback, double min,
                                      double max) const {
  const Value* value = Find(key);
  if (!value) return fallback;
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(value)) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(value)) {
    number = *real;
  } else {
    return Wrong(path_, key, "a number", value);
  }
  if (!(number >= min && number <= max)) {
    return Wrong(path_, key, absl::StrCat("a number in [", min, ", ", max, "]"), value);
  }
  return number;
}

absl::StatusOr<bool> Attrs::BoolOr(std::string_view key, bool fallback) const {
  const Value* value = Find(key);
  if (!value) return fallback;
  if (const bool* flag = std::get_if<bool>(value)) return *flag;
  return Wrong(path_, key, "true or false", value);
}

absl::StatusOr<std::string> Attrs::StringOr(std::string_view key, std::string fallback) const {
  const Value* value = Find(key);
  if (!value) return fallback;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  return Wrong(path_, key, "a string", value);
}

absl::StatusOr<std::vector<std::string>> Attrs::Strings(std::string_view key) const {
  const Value* value = Find(key);
  if (value) {
    if (const auto* list = std::get_if<std::vector<std::string>>(value)) return *list;
  }
  return Wrong(path_, key, "a list of strings", value);
}

absl::StatusOr<std::vector<int64_t>> Attrs::IntPerLayer(std::string_view key, int n, int64_t min,
                                                        int64_t max) const {
  const Value* value = Find(key);
  const auto* list = value ? std::get_if<std::vector<int64_t>>(value) : nullptr;
  if (!list) {
    absl::StatusOr<int64_t> one = Int(key, min, max);
    if (!one.ok()) return one.status();
    return std::vector<int64_t>(n, *one);
  }
  if (static_cast<int>(list->size()) != n) {
    return Wrong(path_, key, absl::StrCat("one entry for each of the ", n, " layers"), value);
  }
  for (int64_t entry : *list) {
    if (entry < min || entry > max) {
      return absl::InvalidArgumentError(absl::StrCat(path_, std::string(key),
                                                     ": expected integers in [", min, ", ", max,
                                                     "], one is ", entry));
    }
  }
  return *list;
}

absl::Status Attrs::CheckAllRead() const {
  for (const auto& [key, value] : values_) {
    if (!read_.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat(path_, key, ": unknown field"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ovq

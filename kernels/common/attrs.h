// Attrs: the typed values of one JSON object of config.json, without a JSON library. AttrReader
// reads them. A key that nobody reads is an error, so that a misspelt field is never ignored.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace ovq::kernels {

class Attrs {
 public:
  using Value = std::variant<std::monostate /* null */, bool, int64_t, double, std::string,
                             std::vector<int64_t>, std::vector<double> /* NaN for null */,
                             std::vector<std::string>,
                             std::vector<std::vector<double>> /* a number alone: a list of one */>;

  explicit Attrs(std::string path = "") : path_(std::move(path)) {}  // "ovq." prefixes messages
  // display_name: the field's name in messages, if it lies in an object of the file.
  void Set(std::string key, Value value, std::string display_name = "");
  const std::string& path() const { return path_; }
  bool Has(std::string_view key) const;  // present and not null
  // Returns InvalidArgument with the text "ovq.chunk_size: <what>".
  absl::Status Error(std::string_view key, std::string_view what) const;
  void Ignore(std::string_view key) const { read_.insert(std::string(key)); }
  // InvalidArgument naming every unread key. Ok where a wrong value of another field leaves open
  // which keys would be read.
  absl::Status CheckAllRead() const;

 private:
  friend class AttrReader;
  const Value* Find(std::string_view key) const;  // null if absent or null; counts as read
  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::string, std::less<>> display_names_;  // full names, by key
  mutable std::set<std::string, std::less<>> read_;
  mutable bool undecided_ = false;  // a field that decides which others are read is wrong
};

// A field by our name and by the name that a file of another format gives it; empty: the same.
struct FieldName {
  std::string_view name;
  std::string in_file = {};
  bool is_filled = false;  // its value is already in its place, made from the file's field
};
using FieldNames = std::vector<FieldName>;

// Reads fields one after another and keeps the first error of each (SplitProblems takes the status
// apart), so that a list of fields stays a list. Errors are InvalidArgument, e.g.
// "ovq.chunk_size: expected an integer in [2, 65536], got 1".
//
// Reading goes on after an error. A check that would only complain of one field because another is
// wrong asks ok() first.
class AttrReader {
 public:
  // Finds and reports fields by the file's names, and finds no others. Without names: by ours.
  explicit AttrReader(const Attrs& attrs, std::span<const FieldName> names = {})
      : attrs_(&attrs), prefix_(attrs.path()), names_(names) {}
  // Finds no fields: checks values that are in their places. The prefix goes before all names.
  AttrReader(std::string prefix, std::span<const FieldName> names)
      : prefix_(std::move(prefix)), names_(names) {}
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }  // counts as reading
  void Fail(std::string_view key, std::string_view what);

  // Sets the value to the field's. A value whose field is absent stays, and is checked all the
  // same. A wrong value becomes the least, a wrong choice the first.
  template <std::integral T>
  void Int(std::string_view key, T& value, int64_t min, int64_t max) {
    int64_t wide = value;
    ReadInt(key, wide, min, max);
    value = static_cast<T>(wide);
  }
  template <std::floating_point T>
  void Float(std::string_view key, T& value, double min, double max) {
    double wide = value;
    ReadFloat(key, wide, min, max);
    value = static_cast<T>(wide);
  }
  void Bool(std::string_view key, bool& value) { value = BoolOr(key, value); }
  template <class Enum>
  void Choice(std::string_view key, Enum& value, std::span<const std::string_view> choices) {
    value = static_cast<Enum>(ChoiceOr(key, choices, static_cast<int>(value)));
  }

  // These return the field's value, or the fallback, which is not checked. A wrong value reads as
  // zero or empty, so that a divisor is read by Int above, into a variable that has its default.
  int64_t Int(std::string_view key, int64_t min, int64_t max);
  int64_t IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max);
  double FloatOr(std::string_view key, double fallback, double min, double max);
  // A list as long as the fallback; a null entry reads as the fallback's entry.
  std::vector<double> FloatsOr(std::string_view key, std::vector<double> fallback, double min,
                               double max);
  // A list of n entries, each a number or a list of numbers; a number alone is a list of one.
  // Absent: n times {fallback}.
  std::vector<std::vector<double>> FloatListsOr(std::string_view key, size_t n, double fallback,
                                                double min, double max);
  bool BoolOr(std::string_view key, bool fallback);
  bool FlagOr(std::string_view key, bool fallback);  // also accepts 0 and 1
  std::string StringOr(std::string_view key, std::string fallback);
  // The index of the value among the choices; 0 if it is none of them.
  int ChoiceOr(std::string_view key, std::span<const std::string_view> choices, int fallback = 0);
  std::vector<std::string> Strings(std::string_view key);
  // An integer gives a list of n equal entries; a list must have n entries.
  std::vector<int64_t> IntPerLayer(std::string_view key, int n, int64_t min, int64_t max);

 private:
  // The file's value, or a value in its place that stands for it; null if the file has none.
  const Attrs::Value* Find(std::string_view key, const Attrs::Value* in_place = nullptr) const;
  bool ReadInt(std::string_view key, int64_t& value, int64_t min, int64_t max);
  bool ReadFloat(std::string_view key, double& value, double min, double max);
  template <class T>
  T ValueOr(std::string_view key, T fallback, std::string_view expected);
  void FailChoice(std::string_view key, std::string_view what);

  const Attrs* attrs_ = nullptr;
  std::string prefix_;
  std::span<const FieldName> names_;
  absl::Status status_;
  std::set<std::string, std::less<>> wrong_;  // keys
};

}  // namespace ovq::kernels

// Attrs: the typed values of one JSON object of config.json, without a JSON library. AttrReader
// reads them. A key that nobody reads is an error, so that a misspelt field is never ignored.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

class Attrs {
 public:
  using Value = std::variant<std::monostate /* null */, bool, int64_t, double, std::string,
                             std::vector<int64_t>, std::vector<double> /* NaN for null */,
                             std::vector<std::string>,
                             std::vector<std::vector<double>> /* a number alone: a list of one */>;

  explicit Attrs(std::string path = "") : path_(std::move(path)) {}  // "ovq." prefixes messages
  // display_name: the field's name in messages, where a file names it otherwise.
  void Set(std::string key, Value value, std::string display_name = "");
  // Copies the field `from`, if present, to the field `name` of another object.
  void CopyTo(Attrs& to, std::string_view from, std::string_view name) const;
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

// Reads fields one after another and keeps the first error of each (SplitProblems takes the status
// apart), so that a list of fields stays a list. A wrong field reads as zero or empty. Errors are
// InvalidArgument, e.g. "ovq.chunk_size: expected an integer in [2, 65536], got 1".
//
// Reading goes on after an error. A check that would only complain of one field because another is
// wrong asks ok() first.
class AttrReader {
 public:
  explicit AttrReader(const Attrs& attrs) : attrs_(attrs) {}
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void Fail(std::string_view key, std::string_view what);

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
  template <class T>
  T ValueOr(std::string_view key, T fallback, std::string_view expected);
  void FailChoice(std::string_view key, std::string_view what);
  const Attrs& attrs_;
  absl::Status status_;
  std::set<std::string, std::less<>> wrong_;  // keys
};

}  // namespace ovq

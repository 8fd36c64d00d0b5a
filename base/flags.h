// The options of a program, each declared once: its name, what it takes, where its value goes, and
// what --help says of it. They are read from the command line and, where a program wants it, from
// the environment and a file; every value knows where it came from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/flag_values.h"

namespace ovq {

// The value of an environment variable, if it is set.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

// One option as it was given, for people to read.
struct Setting {
  std::string name;
  std::string value;
  std::string origin;  // "--max-queue", "OVQ_MAX_QUEUE", "FILE:3: max-queue" or "default"
};

inline constexpr char kDefaultOrigin[] = "default";

class Flags {
 public:
  // With a prefix every option has a variable in the environment: "OVQ_" and max-queue make
  // OVQ_MAX_QUEUE.
  explicit Flags(std::string env_prefix = "") : env_prefix_(std::move(env_prefix)) {}

  // A heading of --help before what is added next.
  void Heading(const std::string& title) { heading_ = title; }
  // default_text, where it is given, is what --help calls the default.
  void Add(const std::string& name, const std::string& value_name, FlagValue value,
           const std::string& help, const std::string& default_text = "");
  // What stands on the command line without a name: the first of them that is given is the first
  // added. A program asks by itself whether one is missing.
  void AddArgument(const std::string& name, FlagValue value, const std::string& help);
  // Names a file of lines "name = value" with the options of Add; '#' begins a comment line.
  void AddFile(const std::string& name, const std::string& help);
  // Without a value, on the command line only.
  void AddSwitch(const std::string& name, std::function<void()> set, const std::string& help);
  // A switch after which nothing else counts, such as --help, which is also -h.
  void AddEnd(const std::string& name, std::function<void()> set, const std::string& help);

  // args: without the program's name, "--name value" or "--name=value". They win over the
  // environment, that over the file, that over the defaults; what is given twice is set twice.
  // Every value is checked, also one that another wins over; none is read where an end is given.
  // InvalidArgument names the culprit and what was expected.
  absl::Status Read(std::span<const std::string> args, const EnvLookup& env = nullptr);

  bool given(std::string_view name) const;  // by whatever means
  std::vector<Setting> settings() const;    // the options of Add in their order
  std::string Help() const;

 private:
  enum class Kind : uint8_t { kValue, kArgument, kFile, kSwitch, kEnd };
  struct Flag {
    Kind kind;
    std::string value_name, help, heading;
    FlagValue value;
    Setting said;

    bool takes_value() const { return kind == Kind::kValue || kind == Kind::kFile; }
    std::string written() const { return kind == Kind::kArgument ? said.name : "--" + said.name; }
  };
  using Given = std::pair<Flag*, std::string>;  // with its value

  void AddFlag(const std::string& name, Flag flag);
  Flag* Find(absl::string_view name);
  Flag* NextArgument(const std::vector<Given>& given);  // null if there is none left
  std::string EnvName(const Flag& flag) const;
  absl::StatusOr<std::vector<Given>> Split(std::span<const std::string> args);
  absl::Status Set(Flag& flag, absl::string_view value, const std::string& origin);
  // What is said of the options that name a file, or of all others.
  absl::Status SetFromSources(const std::vector<Given>& given, const EnvLookup& env, bool file);
  absl::Status ReadFile(const Setting& said);
  absl::Status ReadLine(absl::string_view line, const std::string& where);

  const std::string env_prefix_;
  std::string heading_;
  std::vector<Flag> flags_;
};

}  // namespace ovq

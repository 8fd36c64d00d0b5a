// Flags declares a program's options, each once: name, type, variable and help text. It reads them
// from the command line and, if the program wants it, from the environment and a file, and records
// where each value came from.
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

// Returns the value of an environment variable, if it is set.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

// One option's value and origin, for people to read.
struct Setting {
  std::string name;
  std::string value;
  std::string origin;  // "--max-queue", "OVQ_MAX_QUEUE", "FILE:3: max-queue" or "default"
};

inline constexpr char kDefaultOrigin[] = "default";

class Flags {
 public:
  // With a prefix, every option also has an environment variable: prefix "OVQ_" and option
  // max-queue make OVQ_MAX_QUEUE.
  explicit Flags(std::string env_prefix = "") : env_prefix_(std::move(env_prefix)) {}

  // Starts a section of --help for the options added next.
  void Heading(const std::string& title) { heading_ = title; }
  // default_text, if not empty, is shown by --help in place of the default.
  void Add(const std::string& name, const std::string& value_name, FlagValue value,
           const std::string& help, const std::string& default_text = "");
  // Adds a positional argument. Arguments are filled in the order in which they are added; the
  // program itself checks whether one is missing.
  void AddArgument(const std::string& name, FlagValue value, const std::string& help);
  // Adds an option that names a file of lines "name = value" with the options of Add; '#' begins a
  // comment line.
  void AddFile(const std::string& name, const std::string& help);
  // Adds an option without a value, for the command line only.
  void AddSwitch(const std::string& name, std::function<void()> set, const std::string& help);
  // Adds a switch that makes `out` true.
  void AddSwitch(const std::string& name, bool& out, const std::string& help) {
    AddSwitch(
        name, [&out] { out = true; }, help);
  }
  // Adds a switch that makes all others irrelevant, such as --help; --help is also -h.
  void AddEnd(const std::string& name, std::function<void()> set, const std::string& help);

  // Reads all sources. args: the command line without the program's name, "--name value" or
  // "--name=value". The command line overrides the environment, that the file, and that the
  // defaults; an option given twice is set twice. Every value is checked, even an overridden one,
  // but none is read after an AddEnd switch. InvalidArgument names the option and what was
  // expected.
  absl::Status Read(std::span<const std::string> args, const EnvLookup& env = nullptr);

  bool given(std::string_view name) const;  // by any source
  std::vector<Setting> settings() const;    // the options of Add, in order
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
  using Given = std::pair<Flag*, std::string>;  // a flag with its value

  void AddFlag(const std::string& name, Flag flag);
  Flag* Find(absl::string_view name);
  Flag* NextArgument(const std::vector<Given>& given);  // null if none is left
  std::string EnvName(const Flag& flag) const;
  absl::StatusOr<std::vector<Given>> Split(std::span<const std::string> args);
  absl::Status Set(Flag& flag, absl::string_view value, const std::string& origin);
  // Sets the options that name a file (`file`), or all others, from the command line and the
  // environment.
  absl::Status SetFromSources(const std::vector<Given>& given, const EnvLookup& env, bool file);
  absl::Status ReadFile(const Setting& said);
  absl::Status ReadLine(absl::string_view line, const std::string& where);

  const std::string env_prefix_;
  std::string heading_;
  std::vector<Flag> flags_;
};

}  // namespace ovq

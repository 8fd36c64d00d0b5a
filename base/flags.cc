#include "base/flags.h"

#include <algorithm>
#include <fstream>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace ovq {
namespace {

template <class... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

FlagValue Calling(std::function<void()> set) {
  return {.takes = "", .fallback = "", .set = [set = std::move(set)](std::string_view) {
            set();
            return absl::OkStatus();
          }};
}

}  // namespace

void Flags::AddFlag(const std::string& name, Flag flag) {
  flag.heading = std::exchange(heading_, "");
  flag.said = {.name = name, .value = flag.value.fallback, .origin = kDefaultOrigin};
  flags_.push_back(std::move(flag));
}

void Flags::Add(const std::string& name, const std::string& value_name, FlagValue value,
                const std::string& help, const std::string& default_text) {
  if (!default_text.empty()) value.fallback = default_text;
  if (value.fallback.empty()) value.fallback = "none";
  AddFlag(name, {Kind::kValue, value_name, help, "", std::move(value), {}});
}

void Flags::AddArgument(const std::string& name, FlagValue value, const std::string& help) {
  AddFlag(name, {Kind::kArgument, "", help, "", std::move(value), {}});
}

void Flags::AddFile(const std::string& name, const std::string& help) {
  Add(name, "FILE", ReadTo([](const std::string&) {}, "a file", ParseText), help);
  flags_.back().kind = Kind::kFile;
}

void Flags::AddSwitch(const std::string& name, std::function<void()> set, const std::string& help) {
  AddFlag(name, {Kind::kSwitch, "", help, "", Calling(std::move(set)), {}});
}

void Flags::AddEnd(const std::string& name, std::function<void()> set, const std::string& help) {
  AddFlag(name, {Kind::kEnd, "", help, "", Calling(std::move(set)), {}});
}

Flags::Flag* Flags::Find(absl::string_view name) {
  for (Flag& flag : flags_) {
    if (name == flag.said.name && flag.kind != Kind::kArgument) return &flag;
  }
  return nullptr;
}

Flags::Flag* Flags::NextArgument(const std::vector<Given>& given) {
  for (Flag& flag : flags_) {
    if (flag.kind != Kind::kArgument) continue;
    if (std::ranges::none_of(given, [&](const Given& g) { return g.first == &flag; })) return &flag;
  }
  return nullptr;
}

std::string Flags::EnvName(const Flag& flag) const {
  return env_prefix_ + absl::AsciiStrToUpper(absl::StrReplaceAll(flag.said.name, {{"-", "_"}}));
}

absl::StatusOr<std::vector<Flags::Given>> Flags::Split(std::span<const std::string> args) {
  std::vector<Given> given;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i] == "-h" ? "--help" : absl::string_view(args[i]);
    if (!absl::ConsumePrefix(&arg, "--")) {
      Flag* const argument = absl::StartsWith(arg, "-") ? nullptr : NextArgument(given);
      if (argument == nullptr) {
        return Wrong("unexpected argument '", arg, "'; --help lists the flags");
      }
      given.emplace_back(argument, args[i]);
      continue;
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(arg, absl::MaxSplits('=', 1));
    Flag* const flag = Find(parts[0]);
    if (flag == nullptr) return Wrong("unknown flag --", parts[0], "; --help lists the flags");
    const bool has_value = parts.size() > 1;
    if (has_value && !flag->takes_value()) return Wrong("--", parts[0], " takes no value");
    if (flag->takes_value() && !has_value && ++i == args.size()) {
      return Wrong("--", parts[0], " needs a value");
    }
    if (flag->kind == Kind::kEnd) return std::vector<Given>{{flag, ""}};
    given.emplace_back(flag, has_value             ? std::string(parts[1])
                             : flag->takes_value() ? args[i]
                                                   : "");
  }
  return given;
}

absl::Status Flags::Set(Flag& flag, absl::string_view value, const std::string& origin) {
  const absl::Status status = flag.value.set({value.data(), value.size()});
  if (!status.ok()) return Wrong(origin, ": ", status.message());
  flag.said.value = std::string(value);
  flag.said.origin = origin;
  return absl::OkStatus();
}

absl::Status Flags::ReadFile(const Setting& said) {
  const std::string& path = said.value;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    RETURN_IF_ERROR(ReadLine(text, absl::StrCat(path, ":", number)));
  }
  if (file.eof()) return absl::OkStatus();
  return Wrong(said.origin, ": cannot read '", path, "'");
}

absl::Status Flags::ReadLine(absl::string_view line, const std::string& where) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
  const std::string name(absl::StripAsciiWhitespace(parts[0]));
  Flag* const flag = Find(name);
  if (flag == nullptr || flag->kind != Kind::kValue) {
    return Wrong(where, ": ", name, ": unknown name, expected a flag of --help without its dashes");
  }
  if (parts.size() < 2) return Wrong(where, ": ", name, ": expected name = value");
  return Set(*flag, absl::StripAsciiWhitespace(parts[1]), absl::StrCat(where, ": ", name));
}

absl::Status Flags::SetFromSources(const std::vector<Given>& given, const EnvLookup& env,
                                   bool file) {
  for (Flag& flag : flags_) {
    if (env_prefix_.empty() || !flag.takes_value() || (flag.kind == Kind::kFile) != file) continue;
    const std::optional<std::string> value = env(EnvName(flag));
    if (!value) continue;
    RETURN_IF_ERROR(Set(flag, *value, EnvName(flag)));
  }
  for (const auto& [flag, value] : given) {
    if ((flag->kind == Kind::kFile) != file) continue;
    const absl::Status status = Set(*flag, value, flag->written());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Flags::Read(std::span<const std::string> args, const EnvLookup& env) {
  ASSIGN_OR_RETURN(const std::vector<Given> given, Split(args));
  if (!given.empty() && given.front().first->kind == Kind::kEnd) {
    return given.front().first->value.set("");
  }
  // The weakest source first: the file, once its name is known, then the others.
  RETURN_IF_ERROR(SetFromSources(given, env, /*file=*/true));
  for (const Flag& flag : flags_) {
    if (flag.kind != Kind::kFile || flag.said.origin == kDefaultOrigin) continue;
    RETURN_IF_ERROR(ReadFile(flag.said));
  }
  return SetFromSources(given, env, /*file=*/false);
}

bool Flags::given(std::string_view name) const {
  return std::ranges::any_of(flags_, [&](const Flag& flag) {
    return name == flag.said.name && flag.said.origin != kDefaultOrigin;
  });
}

std::vector<Setting> Flags::settings() const {
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    if (flag.kind == Kind::kValue) settings.push_back(flag.said);
  }
  return settings;
}

std::string Flags::Help() const {
  constexpr char kIndent[] = "\n      ";
  std::string text;
  for (const Flag& flag : flags_) {
    if (!flag.heading.empty()) absl::StrAppend(&text, "\n", flag.heading, "\n");
    absl::StrAppend(&text, "  ", flag.written(), flag.value_name.empty() ? "" : " ",
                    flag.value_name, kIndent, absl::StrReplaceAll(flag.help, {{"\n", kIndent}}));
    if (flag.takes_value()) {
      absl::StrAppend(&text, kIndent);
      if (!flag.value.takes.empty()) absl::StrAppend(&text, flag.value.takes, "; ");
      absl::StrAppend(&text, "default: ", flag.value.fallback);
      if (!env_prefix_.empty()) absl::StrAppend(&text, "; environment: ", EnvName(flag));
    }
    text += '\n';
  }
  return text;
}

}  // namespace ovq

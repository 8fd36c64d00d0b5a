#include "clients/common/program.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

int Fail(std::string_view program, int code, std::string_view message) {
  std::fputs(absl::StrCat(View(program), ": ", View(message), "\n").c_str(), stderr);
  return code;
}

void AddEnds(Flags& flags, Asked& asked) {
  flags.AddEnd(
      "help", [&asked] { asked = Asked::kHelp; }, "this text; also -h");
  flags.AddEnd(
      "version", [&asked] { asked = Asked::kVersion; }, "the program's name and version");
}

void Answer(Asked asked, std::string_view program, std::string_view help) {
  if (asked == Asked::kHelp) std::fwrite(help.data(), 1, help.size(), stdout);
  if (asked == Asked::kVersion) {
    std::fputs(absl::StrCat(View(program), " ", OVQ_VERSION, "\n").c_str(), stdout);
  }
}

}  // namespace ovq

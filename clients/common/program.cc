#include "clients/common/program.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::clients {
int Fail(std::string_view program, int code, std::string_view message) {
  std::fputs(absl::StrCat(AbslView(program), ": ", AbslView(message), "\n").c_str(), stderr);
  return code;
}

void AddHelpAndVersion(Flags& flags, InfoRequest& info_request) {
  flags.AddEnd(
      "help", [&info_request] { info_request = InfoRequest::kHelp; }, "this text; also -h");
  flags.AddEnd(
      "version", [&info_request] { info_request = InfoRequest::kVersion; },
      "the program's name and version");
}

void PrintInfo(InfoRequest info_request, std::string_view program, std::string_view help) {
  if (info_request == InfoRequest::kHelp) std::fwrite(help.data(), 1, help.size(), stdout);
  if (info_request == InfoRequest::kVersion) {
    std::fputs(absl::StrCat(AbslView(program), " ", OVQ_VERSION, "\n").c_str(), stdout);
  }
}

}  // namespace ovq::clients

// What the client programs have in common: how they end, --help, --version.
#pragma once

#include <string_view>

#include "base/flags.h"

namespace ovq {

inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // as shells report SIGINT

// "PROGRAM: MESSAGE" on stderr; the code, for whoever ends with it.
int Fail(std::string_view program, int code, std::string_view message);

// What was asked for in place of the program's work.
enum class InfoRequest { kNothing, kHelp, kVersion };
void AddHelpAndVersion(Flags& flags, InfoRequest& info_request);
// Does it: the usage is the text of --help, the version's line begins with the program's name.
void PrintInfo(InfoRequest info_request, std::string_view program, std::string_view help);

}  // namespace ovq

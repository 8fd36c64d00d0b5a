// Shared by the client programs: exit codes, --help and --version.
#pragma once

#include <string_view>

#include "base/flags.h"

namespace ovq::clients {

inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // the exit status by which shells report SIGINT

// Prints "PROGRAM: MESSAGE" to stderr and returns `code`, the exit status.
int Fail(std::string_view program, int code, std::string_view message);

// Information that the user asked for in place of the program's work.
enum class InfoRequest { kNothing, kHelp, kVersion };
void AddHelpAndVersion(Flags& flags, InfoRequest& info_request);
// Prints the information: the help text, or the version after the program's name.
void PrintInfo(InfoRequest info_request, std::string_view program, std::string_view help);

}  // namespace ovq::clients

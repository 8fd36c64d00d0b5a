// How answers are made: flags of the command line, and what a conversation can change while it
// runs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/flags.h"
#include "ovq/v1/inference.pb.h"

namespace ovq {

// Into the turn, without its prompt. Ranges are the server's business: it names the field and the
// range in its error.
void AddSettings(Flags& flags, v1::ChatTurn& turn);

// "default" takes a value back, and all texts of `stop`; what is a switch on the command line takes
// yes or default. InvalidArgument says what was expected.
absl::Status ChangeSetting(v1::ChatTurn& turn, const std::string& name, const std::string& value);
// A line for each.
std::string SettingsText(v1::ChatTurn& turn);

}  // namespace ovq

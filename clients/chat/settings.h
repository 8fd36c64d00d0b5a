// Generation settings of ovq-chat: command line flags, and the /set command while a conversation
// runs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/flags.h"
#include "ovq/v1/inference.pb.h"

namespace ovq::clients {

// Adds the flags, which write into the turn. The server checks ranges: its errors name field and
// range.
void AddSettings(Flags& flags, v1::ChatTurn& turn);

// Changes one setting. "default" resets it, and removes all texts of `stop`; flags without a value
// take yes or default. InvalidArgument says what was expected.
absl::Status ChangeSetting(v1::ChatTurn& turn, const std::string& name, const std::string& value);
// Returns one line for each setting.
std::string SettingsText(v1::ChatTurn& turn);

}  // namespace ovq::clients

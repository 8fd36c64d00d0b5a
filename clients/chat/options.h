// Defines the command line of ovq-chat, and the /set command while a conversation runs.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "clients/common/program.h"
#include "ovq/v1/inference.pb.h"

namespace ovq::clients {

struct ChatOptions {
  ConnectOptions connect;
  v1::ChatOpen open;
  v1::ChatTurn turn;                  // settings of every turn; no prompt
  std::optional<std::string> prompt;  // value of --prompt
  std::optional<std::string> file;    // value of --file
  bool messages = false;              // questions go through the model's chat template
  bool as_text = false;               // questions go in as plain text even if the model has a chat
                                      // template
  std::optional<std::string> system;  // system message before the first question
  bool interactive = false;           // converse even if stdin is not a terminal
  std::string history_file;           // history of typed turns; "": none is kept
};

// Parses `args` (without the program's name) and the environment variable OVQ_SERVER.
// InvalidArgument names the flag and what was expected.
absl::StatusOr<ChatOptions> ParseOptions(std::span<const std::string> args);

// Changes one setting of turns, a flag of generation. "default" resets it, and removes all texts of
// `stop`; flags without a value take yes or default. InvalidArgument says what was expected.
absl::Status ChangeSetting(v1::ChatTurn& turn, const std::string& name, const std::string& value);
// Returns one line for each setting.
std::string SettingsText(v1::ChatTurn& turn);

}  // namespace ovq::clients

// Command line of ovq-chat.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "clients/common/connect_options.h"
#include "clients/common/program.h"
#include "ovq/v1/inference.pb.h"

namespace ovq {

struct ChatOptions {
  ConnectOptions connect;
  v1::ChatOpen open;
  v1::ChatTurn turn;                  // of every turn, without its prompt
  std::optional<std::string> prompt;  // --prompt
  std::optional<std::string> file;    // --file
  bool messages = false;              // questions go through the model's chat template
  bool as_text = false;               // they do not, whatever the model has
  std::optional<std::string> system;  // before the first of them
  bool interactive = false;           // asked for, whatever stdin is
  std::string history_file;           // of what is typed on a terminal; "": none
  InfoRequest info_request = InfoRequest::kNothing;  // in place of a conversation
};

// args: without the program's name; the environment's OVQ_SERVER is read as well. InvalidArgument
// names the flag and what was expected.
absl::StatusOr<ChatOptions> ParseOptions(std::span<const std::string> args);

std::string HelpText();

}  // namespace ovq

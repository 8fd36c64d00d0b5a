// Command line of ovq-chat.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "clients/common/channel.h"
#include "ovq/v1/inference.pb.h"

namespace ovq {

struct ChatOptions {
  ChannelOptions connect;
  v1::ChatOpen open;
  v1::SamplingParams sampling;
  v1::StopConditions stop;
  v1::OutputOptions output;
  std::optional<std::string> prompt;  // --prompt
  std::optional<std::string> file;    // --file
  bool interactive = false;           // asked for, whatever stdin is
  bool help = false;
};

// Reads the arguments and the environment (OVQ_SERVER). Empty if all is well, else what is wrong.
std::string ParseOptions(int argc, const char* const* argv, ChatOptions& options);

std::string HelpText();

}  // namespace ovq

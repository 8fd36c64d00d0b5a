// Frames the text that is kept with a session (docs/session-format.md, "Session folders").
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ovq::store {

std::string EncodeText(std::string_view text);
// DataLoss for damaged bytes, which names where they are from.
absl::StatusOr<std::string> DecodeText(std::string_view bytes, std::string_view where);

}  // namespace ovq::store

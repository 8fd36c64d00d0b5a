// The keys by which the servers of a fleet sign the states in session files, and know them again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::engine {

// Immutable, so thread-safe.
class FleetKeys {
 public:
  static constexpr size_t kSignatureBytes = 32;
  static constexpr size_t kMost = 16;                          // keys
  static constexpr size_t kLeastBytes = 32, kMostBytes = 128;  // of a key

  // Parses a key file: each line is a key of 64 to 256 hex digits; empty lines, and those that
  // begin with #, are left out. InvalidArgument names the line and what was expected, never a key.
  static absl::StatusOr<FleetKeys> Parse(std::string_view text);

  // Returns the HMAC-SHA256 of the message under the first key.
  std::string Sign(std::string_view message) const;
  // Whether a key of the fleet, not only the first, has signed the message.
  bool Verify(std::string_view message, std::string_view signature) const;

 private:
  explicit FleetKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  std::vector<std::string> keys_;
};

}  // namespace ovq::engine

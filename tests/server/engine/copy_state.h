// The bytes of a session's state, from an export.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "server/engine/engine.h"

namespace ovq::engine::test {

inline absl::StatusOr<std::vector<std::byte>> CopyState(Engine& engine, const std::string& id,
                                                        const std::string& tenant) {
  const absl::StatusOr<SessionImage> image = engine.sessions().Export(id, tenant);
  if (!image.ok()) return image.status();
  const auto bytes = std::as_bytes(std::span(image->state));
  return std::vector(bytes.begin(), bytes.end());
}

}  // namespace ovq::engine::test

// Macros that forward a failed status from the enclosing function.
#pragma once

#include <utility>

#include "absl/status/status.h"

// Returns the status of the expression from the enclosing function, unless it is OK.
#define RETURN_IF_ERROR(...)                                                 \
  do {                                                                       \
    if (absl::Status status_ = (__VA_ARGS__); !status_.ok()) return status_; \
  } while (false)

// Declares or assigns `left` from an absl::StatusOr, or returns its status from the enclosing
// function: ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
#define ASSIGN_OR_RETURN(left, ...) \
  OVQ_ASSIGN_OR_RETURN(OVQ_CONCAT(status_or_, __LINE__), left, __VA_ARGS__)

#define OVQ_ASSIGN_OR_RETURN(result, left, ...) \
  auto result = (__VA_ARGS__);                  \
  if (!result.ok()) return result.status();     \
  left = *std::move(result)
#define OVQ_CONCAT(a, b) OVQ_CONCAT_EXPANDED(a, b)
#define OVQ_CONCAT_EXPANDED(a, b) a##b

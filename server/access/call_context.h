// What a call brings beside its message, whatever it comes over. No gRPC here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace ovq {

// gRPC's metadata or HTTP's headers, and who is at the other end.
class CallContext {
 public:
  virtual ~CallContext() = default;
  virtual std::string peer() const = 0;  // as "ipv4:127.0.0.1:54321": a name of the connection
  // Who shares the server with others like it, where no token says who that is.
  virtual std::string client() const { return peer(); }
  // The values that the caller gave under a name in lower case, as they came.
  virtual std::vector<std::string> Values(const char* name) const = 0;
  virtual const char* kind() const = 0;  // of these, for messages: "metadata", "header"
  virtual SteadyTime deadline() const = 0;
  virtual bool cancelled() const = 0;  // by the caller, or its connection is gone

  // Unset without any, "" if there are several, of which none is better.
  std::optional<std::string> Value(const char* name) const {
    std::vector<std::string> values = Values(name);
    if (values.empty()) return std::nullopt;
    return values.size() == 1 ? std::move(values.front()) : std::string();
  }
};

}  // namespace ovq

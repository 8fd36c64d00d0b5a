// The context of a call over gRPC or HTTP: its metadata and its peer. No gRPC here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace ovq::server {

// gRPC metadata or HTTP headers of one call, and its connection.
class CallContext {
 public:
  virtual ~CallContext() = default;
  virtual std::string peer() const = 0;  // the connection, as "ipv4:127.0.0.1:54321"
  // The key of fair sharing for callers without a token.
  virtual std::string client() const { return peer(); }
  // All values of a name, which is in lower case, in the order they came.
  virtual std::vector<std::string> Values(const char* name) const = 0;
  virtual const char* kind()
      const = 0;  // the word for the values in error texts: "metadata", "header"
  virtual SteadyTime deadline() const = 0;
  virtual bool cancelled() const = 0;  // by the caller, or by the loss of its connection

  // The only value of a name. Unset without any; "" if there are several.
  std::optional<std::string> Value(const char* name) const {
    std::vector<std::string> values = Values(name);
    if (values.empty()) return std::nullopt;
    return values.size() == 1 ? std::move(values.front()) : std::string();
  }
};

}  // namespace ovq::server

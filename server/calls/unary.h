// Types of the handlers of unary calls, over gRPC and HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/calls/service_context.h"

namespace ovq::server {

// Arguments of a handler beside the message. The references are valid until `done` is called.
struct UnaryInfo {
  ServiceContext& services;
  const CallContext& context;
  CallRecord& record;
  std::string tenant, client;                    // of the Caller
  std::shared_ptr<engine::CancelSignal> cancel;  // set when the client cancels
  ByteHold& memory;
};

template <class Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;  // called once, on any thread

// The threads for a method's calls. Calls of kQuick never wait behind those of kWork, so their
// handlers must be cheap and must not wait.
enum class Lane : uint8_t { kWork, kQuick };
inline constexpr size_t kMaxQuickBytes = size_t{64} << 10;  // limit on messages of kQuick

// A handler runs on a thread that may block, but in kQuick.
template <class Request, class Response>
using UnaryHandler =
    std::function<void(const UnaryInfo&, const Request&, const UnaryDone<Response>&)>;

}  // namespace ovq::server

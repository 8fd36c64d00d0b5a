// Calls of one message and one answer: what their handlers get and give, whatever they come over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/calls/service_context.h"

namespace ovq {

// What a handler gets beside the message.
struct UnaryInfo {
  ServiceContext& services;
  const CallContext& context;  // until `done` is called, as the next
  CallRecord& record;
  std::string tenant, client;            // Caller's
  std::shared_ptr<CancelSignal> cancel;  // the client's
  ByteHold& memory;                      // until `done` is called
};

template <class Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;  // once, from any thread

// Where a method's calls are handled: those that cost next to nothing are never behind others.
enum class Lane : uint8_t { kWork, kQuick };
inline constexpr size_t kMaxQuickBytes = size_t{64} << 10;  // of a message in the quick one

// Handlers run on a thread that may block, but for those of the quick lane.
template <class Request, class Response>
using UnaryHandler =
    std::function<void(const UnaryInfo&, const Request&, const UnaryDone<Response>&)>;

}  // namespace ovq

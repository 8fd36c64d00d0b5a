// The interfaces between an HTTP server and its connections.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/beast/http/message.hpp>

#include "absl/time/time.h"
#include "server/http/exchange.h"
#include "server/http/http_options.h"

namespace ovq {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class AnyConnection : public Exchange, public std::enable_shared_from_this<AnyConnection> {
 public:
  using Exchange::Exchange;
  virtual void Close(bool if_idle) = 0;  // any thread
};

// A server as its connections see it.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const HttpOptions& options() const = 0;
  virtual const HttpEvents& events() const = 0;
  virtual bool ending() const = 0;  // connections take no further request
  virtual void Handle(std::shared_ptr<Exchange> exchange) = 0;
  // Marks a connection without a request. Idle ones are closed first to make room.
  virtual void SetIdle(AnyConnection* connection, bool idle) = 0;
  virtual void OnConnectionClosed(AnyConnection* connection) = 0;
};

inline constexpr size_t kMaxHeaderBytes = size_t{16} << 10;
inline constexpr size_t kMaxPipelinedBytes = size_t{16}
                                             << 10;  // read ahead, behind the current request
inline constexpr size_t kReadBytes = 4096;
inline constexpr size_t kWriteBytes = size_t{64} << 10;

inline constexpr absl::Duration kFinish = absl::Seconds(1);

inline asio::steady_timer::duration ToChrono(absl::Duration time) {
  return absl::ToChronoNanoseconds(std::min(time, absl::Hours(24 * 365)));
}

// The status line and headers. framing: the header lines that say where the body ends.
std::string ReplyHead(const HttpReply& reply, const std::string& framing, bool keep_alive);

// --- headers of requests ---
using HttpHeader = boost::beast::http::request_header<>;
HttpRequest ToHttpRequest(const HttpHeader& header);  // without its body
absl::Status CheckFraming(
    const HttpHeader& header);  // InvalidArgument if the body's end is unclear

// --- errors for requests that are not read to their end ---
absl::Status BodyTooLarge(size_t most);
absl::Status BadHeader(const std::string& why);

}  // namespace ovq

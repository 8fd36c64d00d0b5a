#include "server/http/connection.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/calls/service_context.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

namespace beast = boost::beast;
using RequestHeader = beast::http::request_header<>;
using Parser = beast::http::request_parser<beast::http::string_body>;

constexpr size_t kMaxHeaderBytes = size_t{16} << 10;
constexpr size_t kMaxPipelinedBytes = size_t{16} << 10;  // read ahead, behind the current request
constexpr size_t kReadBytes = 4096;
constexpr size_t kWriteBytes = size_t{64} << 10;
constexpr absl::Duration kFinish = absl::Seconds(1);

asio::steady_timer::duration ToChrono(absl::Duration time) {
  return absl::ToChronoNanoseconds(std::min(time, absl::Hours(24 * 365)));
}

// The status line and headers. framing: the header lines that say where the body and the connection
// end.
std::string ReplyHead(const HttpReply& reply, const std::string& framing) {
  const auto status = static_cast<beast::http::status>(reply.status);
  std::string head = absl::StrCat(
      "HTTP/1.1 ", reply.status, " ", std::string(beast::http::obsolete_reason(status)),
      "\r\nDate: ",
      absl::FormatTime("%a, %d %b %E4Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()), "\r\n");
  if (!reply.content_type.empty()) {
    absl::StrAppend(&head, "Content-Type: ", reply.content_type, "\r\n");
  }
  for (const auto& [name, value] : reply.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&head, framing, "\r\n");
  return head;
}

// Moves the authority of a target in absolute form, "http://localhost/health", to the header
// `host`, which it overrides (RFC 9112, 3.2.2).
void SplitAbsoluteTarget(HttpRequest& request) {
  const size_t scheme = request.target.find("://");
  if (scheme == std::string::npos) return;
  const std::string_view name = std::string_view(request.target).substr(0, scheme);
  if (!beast::iequals({name.data(), name.size()}, "http") &&
      !beast::iequals({name.data(), name.size()}, "https")) {
    return;
  }
  const std::string rest = request.target.substr(scheme + 3);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::erase_if(request.headers, [](const auto& header) { return header.first == "host"; });
  request.headers.emplace_back("host", rest.substr(0, end));
  request.target = rest.substr(end);
  if (!request.target.starts_with('/')) request.target.insert(0, "/");
}

// Without its body.
HttpRequest ToHttpRequest(const RequestHeader& header) {
  HttpRequest request;
  request.method = std::string(header.method_string());
  request.target = std::string(header.target());
  for (const auto& field : header) {
    request.headers.emplace_back(absl::AsciiStrToLower(absl::string_view(
                                     field.name_string().data(), field.name_string().size())),
                                 std::string(field.value()));
  }
  SplitAbsoluteTarget(request);
  return request;
}

absl::Status BadPart(const char* field, const std::string& why) {
  return engine::WithFacts(
      absl::InvalidArgumentError(absl::StrCat(field, " of the request: ", why)), {.field = field});
}
absl::Status BadHeader(const std::string& why) { return BadPart("header", why); }

// Refuses headers that a proxy in front may take for another request: InvalidArgument. Beast's
// parser takes a request with an unknown transfer coding for one without a body, and the bytes
// after it for the next request. HTTP/1.0 has no transfer codings, and HTTP/1.1 exactly one host
// (RFC 9112, 6.1 and 3.2).
absl::Status CheckHeader(const RequestHeader& header) {
  using Field = beast::http::field;
  const size_t codings = header.count(Field::transfer_encoding);
  const bool chunked = codings == 1 && header.version() >= 11 &&
                       beast::iequals(header[Field::transfer_encoding], "chunked");
  if (codings > 0 && !chunked) {
    return BadHeader("expected transfer-encoding chunked, or none (HTTP/1.0: none)");
  }
  const size_t hosts = header.count(Field::host);
  if (hosts > 1 || (hosts == 0 && header.version() >= 11)) {
    return BadHeader(absl::StrCat("expected one host, got ", hosts));
  }
  return absl::OkStatus();
}

// Parses the next part of what is buffered. need_more: it is no whole part.
ErrorCode Parse(beast::flat_buffer& buffer, Parser& parser) {
  ErrorCode error = beast::http::error::need_more;
  if (buffer.size() > 0) buffer.consume(parser.put(buffer.data(), error));
  return error;
}

absl::Status BodyTooLarge(size_t most) {
  return engine::WithFacts(absl::OutOfRangeError(absl::StrCat("body: expected at most ", most,
                                                              " bytes (--max-message-bytes)")),
                           {.field = "body"});
}

// Whether a request has begun. Some clients send a line break behind a body, which is skipped
// (RFC 9112, 2.2).
bool RequestBegun(beast::flat_buffer& buffer) {
  const auto read = [&buffer] {
    return std::string_view(static_cast<const char*>(buffer.data().data()), buffer.size());
  };
  while (read().starts_with("\r\n")) buffer.consume(2);
  return !read().empty() && read() != "\r";
}

// A timer for one thing at a time. On the strand.
class Alarm {
 public:
  explicit Alarm(Tcp::socket::executor_type strand) : timer_(std::move(strand)) {}

  // Calls `work`, which keeps the alarm alive, after this time unless it is set again.
  void Set(absl::Duration time, std::function<void()> work) {
    timer_.expires_after(ToChrono(time));
    if (time == absl::InfiniteDuration()) return;
    timer_.async_wait([this, work = std::move(work)](ErrorCode error) {
      // It may have been set again while this callback was queued.
      if (!error && timer_.expiry() <= asio::steady_timer::clock_type::now()) work();
    });
  }

 private:
  asio::steady_timer timer_;
};

// The bytes of one client. All functions run on the socket's strand, and so do the callbacks. At
// most one Read and one Write at a time.
class ClientStream {
 public:
  using Done = std::function<void(ErrorCode error, size_t bytes)>;

  ClientStream(Tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), socket_(std::move(socket)) {
    if (context_ != nullptr) tls_.emplace(socket_, *context_);
  }
  Tcp::socket& socket() { return socket_; }
  void Handshake(Done done) {  // before all else; bytes: 0
    if (!tls_) return done({}, 0);
    tls_->async_handshake(asio::ssl::stream_base::server,
                          [done = std::move(done)](ErrorCode error) { done(error, 0); });
  }
  void Read(asio::mutable_buffer bytes, Done done) {  // at least one byte
    const asio::mutable_buffers_1 to(bytes);
    tls_ ? tls_->async_read_some(to, std::move(done))
         : socket_.async_read_some(to, std::move(done));
  }
  void Write(asio::const_buffer bytes, Done done) {  // at least one byte
    const asio::const_buffers_1 from(bytes);
    tls_ ? tls_->async_write_some(from, std::move(done))
         : socket_.async_write_some(from, std::move(done));
  }
  void WriteAll(std::string_view text, Done done) {  // of static storage
    const auto from = asio::buffer(text.data(), text.size());
    tls_ ? asio::async_write(*tls_, from, std::move(done))
         : asio::async_write(socket_, from, std::move(done));
  }
  // Tells the client that nothing follows. TLS also waits until the client says so; then the bytes
  // that it still sends are no concern of the caller, and `drained` is true.
  void ShutDown(std::function<void(bool drained)> done) {
    if (tls_) return tls_->async_shutdown([done = std::move(done)](ErrorCode) { done(true); });
    ErrorCode ignored;
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
    done(false);
  }

 private:
  const std::shared_ptr<asio::ssl::context> context_;
  Tcp::socket socket_;
  std::optional<asio::ssl::stream<Tcp::socket&>> tls_;
};

// Returns the longest time to the next part of a body. end: when all of it must be there. A client
// that sends none of it holds a server that ends for a moment only.
absl::Duration BodyPatience(const ConnectionHost& host, asio::steady_timer::time_point end) {
  const HttpOptions& options = host.options;
  absl::Duration patience = absl::FromChrono(end - asio::steady_timer::clock_type::now());
  patience = std::min(patience, options.progress_timeout);
  return host.ending ? std::min(patience, options.ending_progress_timeout) : patience;
}

// A request from the end of its header on, until its answer is sent.
class OpenRequest {
 public:
  explicit OpenRequest(ConnectionHost& host) : host_(host) { host_.CountRequests(1); }
  ~OpenRequest() { host_.CountRequests(-1); }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

 private:
  ConnectionHost& host_;
};

// All private members run on the strand of the socket; those of Exchange may be called on any
// thread.
class HttpConnection final : public Exchange, public Connection {
  template <class Work>
  auto WithSelf(Work work) {  // a callback that keeps the connection alive; its time is charged
    return [this, self = shared_from_this(), work = std::move(work)](auto... args) mutable {
      std::optional<engine::HostMeter> meter;
      if (host_.options.host_time != nullptr) meter.emplace(*host_.options.host_time, payer());
      work(args...);
    };
  }
  template <class Work>
  void PostToStrand(Work work) {
    asio::post(stream_.socket().get_executor(), WithSelf(std::move(work)));
  }

 public:
  HttpConnection(ConnectionHost& host, std::string peer, Tcp::socket socket,
                 std::shared_ptr<asio::ssl::context> tls)
      : Exchange(std::move(peer)),
        host_(host),
        leaving_{host, this},
        stream_(std::move(socket), std::move(tls)),
        alarm_(stream_.socket().get_executor()) {}

  void Start() override {
    PostToStrand([this] {
      host_.SetIdle(this, true);
      Deadline(host_.options.header_timeout);
      stream_.Handshake(WithSelf([this](ErrorCode error, size_t) { error ? End() : Await(); }));
    });
  }

  void Reply(HttpReply reply) override {
    PostToStrand([this, reply = std::move(reply)] {
      // A 304's length would be that of the copy the client has, and a 204 must not have one.
      const bool whole = reply.status != 304 && reply.status != 204;
      WriteHead(reply, whole ? absl::StrCat("Content-Length: ", reply.body.size(), "\r\n") : "");
      if (request_.method != "HEAD") out_ += reply.body;
      ended_ = true;
      Write();
    });
  }
  void Stream(HttpReply head, Source source) override {
    PostToStrand([this, head = std::move(head), source = std::move(source)]() mutable {
      chunked_ = version_ >= 11;
      keep_alive_ = keep_alive_ && chunked_;  // else the end of the connection is the body's
      WriteHead(head, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
      source_ = std::move(source);
      Advance();
    });
  }
  void Pump() override {
    if (pump_posted_.exchange(true)) return;
    PostToStrand([this] {
      pump_posted_ = false;
      if (!writing_) Advance();
    });
  }

  void Close(bool if_idle) override {
    PostToStrand([this, if_idle] {
      if (!if_idle || !open_) return End();
      if (parser_ && host_.ending) Deadline(BodyPatience(host_, body_end_));
    });
  }

 private:
  void Deadline(absl::Duration time) {  // ends the connection
    alarm_.Set(time, WithSelf([this] { End(); }));
  }
  // Calls OnQuiet's callback each time that nothing was written for a while.
  void WatchSilence() {
    if (closed_) return;
    alarm_.Set(host_.options.quiet_time, WithSelf([this] {
                 CallOnQuiet();
                 WatchSilence();
               }));
  }

  // Waits for bytes: the start of the next request, or, while a request is handled, bytes sent
  // ahead and the client's end.
  void Await() {
    if (closed_ || gone()) return;
    if (reading_) {
      // The next request is in the buffer already, sent ahead.
      ErrorCode ignored;
      if (!handling_ && buffer_.size() > 0) stream_.socket().cancel(ignored);
      return;
    }
    if (!handling_) {
      if (RequestBegun(buffer_)) return ReadHeader();
    } else if (buffer_.size() >= kMaxPipelinedBytes) {
      return;
    }
    ReadSome([this](ErrorCode error) {
      if (!error || error == asio::error::operation_aborted) return Await();
      // A client that closes only its half counts as gone: the two cannot be told apart in time.
      SetGone();
      if (!handling_) End();
    });
  }
  // Reads into the buffer, then calls `work`, or FinishNow if the connection is finishing.
  template <class Work>
  void ReadSome(Work work) {
    reading_ = true;
    stream_.Read(buffer_.prepare(kReadBytes), WithSelf([this, work](ErrorCode error, size_t n) {
                   reading_ = false;
                   buffer_.commit(n);
                   host_.events.bytes(n, 0);
                   if (finishing_) return FinishNow();
                   work(error);
                 }));
  }

  void ReadHeader() {
    if (!parser_) {
      Deadline(host_.options.header_timeout);
      parser_.emplace();
      parser_->header_limit(kMaxHeaderBytes);
      parser_->body_limit(host_.options.max_body_bytes);
    }
    const ErrorCode error = Parse(buffer_, *parser_);
    if (error != beast::http::error::need_more) return HeaderRead(error);
    ReadSome([this](ErrorCode failed) { failed ? End() : ReadHeader(); });
  }
  void HeaderRead(ErrorCode error) {
    if (closed_) return;
    using HttpError = beast::http::error;
    const auto& message = parser_->get();
    open_.emplace(host_);
    version_ = message.version();
    keep_alive_ = !error && parser_->keep_alive();
    request_ = ToHttpRequest(message);
    if (error == HttpError::header_limit || error == HttpError::buffer_overflow) {
      return Handle(BadHeader(absl::StrCat("expected at most ", kMaxHeaderBytes, " bytes")));
    }
    const size_t most = host_.options.max_body_bytes;
    if (error == HttpError::body_limit) return Handle(BodyTooLarge(most));
    if (error && error.category() == make_error_code(HttpError::bad_method).category()) {
      return Handle(BadHeader(error.message()));
    }
    if (error) return End();
    if (absl::Status bad = CheckHeader(message); !bad.ok()) return Handle(std::move(bad));
    host_.SetIdle(this, false);
    request_.memory = std::make_unique<ByteHold>(host_.options.memory, client());
    const auto length = parser_->content_length();
    if (length && *length > most) return Handle(BodyTooLarge(most));
    if (length && !ReserveBody(*length)) return;
    body_end_ = asio::steady_timer::clock_type::now() + ToChrono(host_.options.body_timeout);
    // A client that has sent its body, has none, or speaks HTTP/1.0 does not wait for this answer.
    if (!beast::iequals(message[beast::http::field::expect], "100-continue") || version_ < 11 ||
        parser_->is_done() || buffer_.size() > 0) {
      return ReadBody(true);
    }
    Deadline(host_.options.progress_timeout);
    stream_.WriteAll("HTTP/1.1 100 Continue\r\n\r\n", WithSelf([this](ErrorCode failed, size_t) {
                       failed ? End() : ReadBody(true);
                     }));
  }
  // progressed: since the deadline was set.
  void ReadBody(bool progressed) {
    for (; !closed_; progressed = true) {
      if (parser_->is_done()) {
        request_.body = std::move(parser_->get().body());
        return Handle();
      }
      if (progressed) Deadline(BodyPatience(host_, body_end_));
      const ErrorCode error = Parse(buffer_, *parser_);
      // Bytes of the body leave the buffer as they come; the size of a chunk with its extensions,
      // or the trailer, stays there until it is whole.
      if (error == beast::http::error::need_more && buffer_.size() < kMaxHeaderBytes) {
        return ReadSome([this](ErrorCode failed) { failed ? End() : ReadBody(false); });
      }
      if (error == beast::http::error::need_more) {
        return Handle(BadPart("body", absl::StrCat("expected at most ", kMaxHeaderBytes,
                                                   " bytes for a chunk's size or the trailer")));
      }
      if (error == beast::http::error::body_limit) {
        return Handle(BodyTooLarge(host_.options.max_body_bytes));
      }
      if (error) return Handle(BadPart("body", error.message()));
      if (!ReserveBody(parser_->get().body().size())) return;
    }
  }

  // Takes memory for a body of `bytes` in all. False: refused, and the client gets an error.
  bool ReserveBody(size_t bytes) {
    const size_t held = request_.memory->bytes();
    if (bytes <= held) return true;
    absl::Status status = ReserveBytes(*request_.memory, bytes - held);
    if (status.ok()) return true;
    Handle(std::move(status));
    return false;
  }
  // Hands the request over. After an error, the rest of it is not read.
  void Handle(absl::Status fault = absl::OkStatus()) {
    if (!fault.ok()) {
      host_.SetIdle(this, false);
      keep_alive_ = false;
    }
    fault_ = std::move(fault);
    parser_.reset();
    WatchSilence();
    handling_ = true;
    ended_ = false;
    Await();
    host_.handle(std::static_pointer_cast<HttpConnection>(shared_from_this()));
  }

  void WriteHead(const HttpReply& reply, const std::string& framing) {
    keep_alive_ = keep_alive_ && !host_.ending;
    const char* const end = !keep_alive_     ? "Connection: close\r\n"
                            : version_ >= 11 ? ""
                                             : "Connection: keep-alive\r\n";
    out_ = ReplyHead(reply, absl::StrCat(framing, end));
  }

  // Asks the source for bytes and writes them, while no write is running.
  void Advance() {
    while (source_ && !ended_ && !writing_) {
      part_.clear();
      ended_ = !source_(part_);
      if (ended_) source_ = nullptr;  // nobody counts what it holds any more
      const bool nothing = part_.empty();
      if (gone()) {
        out_.clear();
      } else if (chunked_ && !nothing) {
        absl::StrAppend(&out_, absl::Hex(part_.size()), "\r\n", part_, "\r\n");
      } else {
        out_ += part_;
      }
      if (ended_ && chunked_ && !gone()) out_ += "0\r\n\r\n";
      if (!out_.empty() || ended_) return Write();
      if (nothing) return;  // until Pump
    }
  }

  void Write() {
    if (out_.empty() || closed_) {
      out_.clear();
      return ended_ ? Answered() : Advance();
    }
    writing_ = true;
    Deadline(host_.options.progress_timeout);
    stream_.Write(asio::buffer(out_.data() + sent_, std::min(out_.size() - sent_, kWriteBytes)),
                  WithSelf([this](ErrorCode error, size_t n) {
                    writing_ = false;
                    WatchSilence();
                    sent_ += n;
                    host_.events.bytes(0, n);
                    if (error || sent_ == out_.size()) {
                      out_.clear();
                      sent_ = 0;
                    }
                    if (error) End();
                    Write();
                  }));
  }

  void Answered() {
    if (!handling_) return;
    handling_ = false;
    open_.reset();
    source_ = nullptr;
    // An assignment alone would keep the memory of texts.
    (void)std::exchange(request_, {});
    for (std::string* text : {&out_, &part_}) (void)std::exchange(*text, {});
    SetPayer(client());  // whoever sends the next request is not known yet
    ReleaseCallbacks();
    if (closed_) return;
    if (gone() || !keep_alive_) return Finish();
    host_.SetIdle(this, true);
    Deadline(host_.options.idle_timeout);
    Await();
  }

  // --- the end ---

  // Closes after the answer. Bytes that the client may still be sending are read for a moment: else
  // the system would reset the connection before the client has read the answer.
  void Finish() {
    finishing_ = true;
    Deadline(kFinish);
    if (!reading_) return FinishNow();
    ErrorCode ignored;
    stream_.socket().cancel(ignored);
  }
  void FinishNow() {
    if (closed_) return;
    stream_.ShutDown(WithSelf([this](bool drained) { drained ? End() : Drain(); }));
  }
  void Drain() {
    buffer_.clear();
    stream_.Read(buffer_.prepare(kReadBytes), WithSelf([this](ErrorCode error, size_t n) {
                   host_.events.bytes(n, 0);
                   error ? End() : Drain();
                 }));
  }
  void End() {
    Deadline(absl::InfiniteDuration());
    closed_ = true;
    open_.reset();
    ErrorCode ignored;
    stream_.socket().close(ignored);
    SetGone();
  }

  struct Leaving {
    ConnectionHost& host;
    Connection* const connection;
    ~Leaving() { host.OnConnectionClosed(connection); }
  };

  ConnectionHost& host_;
  const Leaving leaving_;  // destroyed last: the server ends when all have left
  ClientStream stream_;
  Alarm alarm_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  asio::steady_timer::time_point body_end_;
  unsigned version_ = 11;
  bool keep_alive_ = false;
  std::optional<OpenRequest> open_;
  bool reading_ = false, handling_ = false, finishing_ = false, closed_ = false;

  std::string out_, part_;  // bytes to be written; the source's last part
  size_t sent_ = 0;
  Source source_;
  bool chunked_ = false, writing_ = false, ended_ = false;
  std::atomic<bool> pump_posted_ = false;
};

}  // namespace

std::shared_ptr<Connection> MakeConnection(ConnectionHost& host, std::string peer,
                                           Tcp::socket socket,
                                           std::shared_ptr<asio::ssl::context> tls) {
  return std::make_shared<HttpConnection>(host, std::move(peer), std::move(socket), std::move(tls));
}

}  // namespace ovq::server

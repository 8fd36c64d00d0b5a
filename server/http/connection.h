// One connection of an HTTP server: it reads requests one after another and writes their answers.
#pragma once

#include <atomic>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/calls/service_context.h"
#include "server/http/connection_host.h"

namespace ovq {

namespace beast = boost::beast;

// Socket: TCP, or TLS on TCP. All private members run on the strand of the socket; those of
// Exchange may be called on any thread.
template <class Socket>
class Connection final : public AnyConnection {
 public:
  // args: further arguments of the Socket. tls: kept alive for them.
  template <class... Args>
  Connection(ConnectionHost& host, std::string peer, std::shared_ptr<void> tls, Tcp::socket socket,
             Args&... args)
      : AnyConnection(std::move(peer)),
        host_(host),
        leaving_{host, this},
        tls_(std::move(tls)),
        stream_(std::move(socket), args...),
        timer_(stream_.get_executor()) {}

  void Start() {
    PostToStrand([this] {
      host_.SetIdle(this, true);
      Deadline(host_.options().header_timeout);
      if constexpr (kTls) {
        stream_.async_handshake(asio::ssl::stream_base::server,
                                WithSelf([this](ErrorCode error) { error ? End() : Await(); }));
      } else {
        Await();
      }
    });
  }

  void Reply(HttpReply reply) override {
    PostToStrand([this, reply = std::move(reply)]() mutable {
      const bool whole =
          reply.status != 304;  // its length would be that of the copy the client has
      WriteHead(reply, whole ? absl::StrCat("Content-Length: ", reply.body.size(), "\r\n") : "");
      if (request_.method != "HEAD") out_ += reply.body;
      ended_ = true;
      Write();
    });
  }
  void Stream(HttpReply head, Source source) override {
    PostToStrand([this, head = std::move(head), source = std::move(source)]() mutable {
      chunked_ = version_ >= 11;
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
      if (!if_idle || !handling_) End();
    });
  }

 private:
  static constexpr bool kTls = !std::is_same_v<Socket, Tcp::socket>;
  using Parser = beast::http::request_parser<beast::http::string_body>;

  template <class Work>
  auto WithSelf(Work work) {  // a callback that keeps the connection alive
    return [self = shared_from_this(), work = std::move(work)](auto... args) mutable {
      work(args...);
    };
  }
  template <class Work>
  void PostToStrand(Work work) {
    asio::post(stream_.get_executor(), WithSelf(std::move(work)));
  }

  // Ends the connection after this time, unless another deadline is set.
  void Deadline(absl::Duration time) {
    timer_.expires_after(ToChrono(time));
    timer_.async_wait(WithSelf([this](ErrorCode error) {
      // A new deadline may have been set while this callback was queued.
      if (!error && timer_.expiry() <= asio::steady_timer::clock_type::now()) End();
    }));
  }
  void NoDeadline() { timer_.expires_at(asio::steady_timer::time_point::max()); }

  // Waits for bytes: the start of the next request, or, while a request is handled, bytes sent
  // ahead and the client's end.
  void Await() {
    if (closed_ || gone()) return;
    if (reading_) {
      // The next request is in the buffer already, sent ahead.
      ErrorCode ignored;
      if (!handling_ && buffer_.size() > 0) stream_.lowest_layer().cancel(ignored);
      return;
    }
    if (!handling_) {
      if (buffer_.size() > 0) return ReadHeader();
    } else if (buffer_.size() >= kMaxPipelinedBytes) {
      return;
    }
    reading_ = true;
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            WithSelf([this](ErrorCode error, size_t n) {
                              reading_ = false;
                              buffer_.commit(n);
                              host_.events().bytes(n, 0);
                              if (finishing_) return FinishNow();
                              if (!error || error == asio::error::operation_aborted) return Await();
                              // A client that closes only its half counts as gone: the two cannot
                              // be told apart in time.
                              SetGone();
                              if (!handling_) End();
                            }));
  }

  void ReadHeader() {
    Deadline(host_.options().header_timeout);
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(host_.options().max_body_bytes);
    beast::http::async_read_header(
        stream_, buffer_, *parser_,
        WithSelf([this, had = buffer_.size()](ErrorCode error, size_t n) {
          host_.events().bytes(n + buffer_.size() - had, 0);
          HeaderRead(error);
        }));
  }

  void HeaderRead(ErrorCode error) {
    if (closed_) return;
    using HttpError = beast::http::error;
    if (error == HttpError::end_of_stream || error == HttpError::partial_message) return End();
    version_ = parser_->get().version();
    keep_alive_ = parser_->get().keep_alive() && version_ >= 11;
    request_ = ToHttpRequest(parser_->get());
    fault_ = absl::OkStatus();
    const size_t most = host_.options().max_body_bytes;
    if (error == HttpError::header_limit || error == HttpError::buffer_overflow) {
      return Fault(BadHeader(absl::StrCat("expected at most ", kMaxHeaderBytes, " bytes")));
    }
    if (error == HttpError::body_limit) return Fault(BodyTooLarge(most));
    if (error && error.category() == make_error_code(HttpError::bad_method).category()) {
      return Fault(BadHeader(error.message()));
    }
    if (error) return End();
    if (absl::Status framing = CheckFraming(parser_->get()); !framing.ok()) {
      return Fault(std::move(framing));
    }
    host_.SetIdle(this, false);
    request_.memory = std::make_unique<ByteHold>(host_.options().memory, client());
    const auto length = parser_->content_length();
    if (length && *length > most) return Fault(BodyTooLarge(most));
    if (length && !ReserveBody(*length)) return;
    body_end_ = asio::steady_timer::clock_type::now() + ToChrono(host_.options().body_timeout);
    if (!beast::iequals(parser_->get()[beast::http::field::expect], "100-continue")) {
      return ReadBody();
    }
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    Deadline(host_.options().progress_timeout);
    asio::async_write(stream_, asio::buffer(kContinue),
                      WithSelf([this](ErrorCode error, size_t) { error ? End() : ReadBody(); }));
  }

  void ReadBody() {
    if (closed_) return;
    if (parser_->is_done()) {
      request_.body = std::move(parser_->get().body());
      return Handle();
    }
    const auto now = asio::steady_timer::clock_type::now();
    const absl::Duration left = absl::FromChrono(body_end_ - now);
    Deadline(std::min(host_.options().progress_timeout, left));
    beast::http::async_read_some(stream_, buffer_, *parser_,
                                 WithSelf([this, had = buffer_.size()](ErrorCode error, size_t n) {
                                   host_.events().bytes(n + buffer_.size() - had, 0);
                                   if (error == beast::http::error::body_limit) {
                                     return Fault(BodyTooLarge(host_.options().max_body_bytes));
                                   }
                                   if (error) return End();
                                   if (ReserveBody(parser_->get().body().size())) ReadBody();
                                 }));
  }

  // Takes memory for a body of `bytes` in all. False: refused, and the client gets an error.
  bool ReserveBody(size_t bytes) {
    const size_t held = request_.memory->bytes();
    if (bytes <= held) return true;
    absl::Status status = ReserveBytes(*request_.memory, bytes - held);
    if (status.ok()) return true;
    Fault(std::move(status));
    return false;
  }
  // Answers with an error; the rest of the request is not read.
  void Fault(absl::Status fault) {
    host_.SetIdle(this, false);
    fault_ = std::move(fault);
    keep_alive_ = false;
    Handle();
  }
  void Handle() {
    parser_.reset();
    NoDeadline();
    handling_ = true;
    ended_ = false;
    Await();
    host_.Handle(shared_from_this());
  }

  void WriteHead(const HttpReply& reply, const std::string& framing) {
    keep_alive_ = keep_alive_ && !host_.ending();
    out_ = ReplyHead(reply, framing, keep_alive_);
  }

  // Asks the source for bytes and writes them, while no write is running.
  void Advance() {
    while (source_ && !ended_ && !writing_) {
      part_.clear();
      ended_ = !source_(part_);
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
    Deadline(host_.options().progress_timeout);
    stream_.async_write_some(
        asio::buffer(out_.data() + sent_, std::min(out_.size() - sent_, kWriteBytes)),
        WithSelf([this](ErrorCode error, size_t n) {
          writing_ = false;
          NoDeadline();
          sent_ += n;
          host_.events().bytes(0, n);
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
    source_ = nullptr;
    request_ = {};
    out_ = part_ = std::string();
    ReleaseOnGone();
    if (closed_) return;
    if (gone() || !keep_alive_) return Finish();
    host_.SetIdle(this, true);
    Deadline(host_.options().idle_timeout);
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
    stream_.lowest_layer().cancel(ignored);
  }
  void FinishNow() {
    if (closed_) return;
    if constexpr (kTls) {
      stream_.async_shutdown(WithSelf([this](ErrorCode) { End(); }));
    } else {
      ErrorCode ignored;
      stream_.lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
      Drain();
    }
  }
  void Drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            WithSelf([this](ErrorCode error, size_t n) {
                              host_.events().bytes(n, 0);
                              error ? End() : Drain();
                            }));
  }
  void End() {
    NoDeadline();
    closed_ = true;
    ErrorCode ignored;
    stream_.lowest_layer().close(ignored);
    SetGone();
  }

  struct Leaving {
    ConnectionHost& host;
    AnyConnection* const connection;
    ~Leaving() { host.OnConnectionClosed(connection); }
  };

  ConnectionHost& host_;
  const Leaving leaving_;  // destroyed last: the server ends when all have left
  const std::shared_ptr<void> tls_;
  Socket stream_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  asio::steady_timer::time_point body_end_;
  unsigned version_ = 11;
  bool keep_alive_ = false;
  bool reading_ = false, handling_ = false, finishing_ = false, closed_ = false;

  std::string out_, part_;  // bytes to be written; the source's last part
  size_t sent_ = 0;
  Source source_;
  bool chunked_ = false, writing_ = false, ended_ = false;
  std::atomic<bool> pump_posted_ = false;
};

}  // namespace ovq

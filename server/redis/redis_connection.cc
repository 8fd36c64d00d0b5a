#include "server/redis/redis_connection.h"

#include <hiredis/hiredis.h>

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::redis {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

Reply ReadTree(const redisReply& from) {
  Reply reply;
  reply.null = from.type == REDIS_REPLY_NIL;
  reply.number = from.integer;
  if (from.str != nullptr) reply.text.assign(from.str, from.len);
  for (size_t i = 0; i < from.elements; ++i) reply.items.push_back(ReadTree(*from.element[i]));
  return reply;
}

// The code of an error by its first word, or by the word after the hyphen where Redis 6 reports
// what a command of a script met: "ERR Error running script (...): ...: -OOM command not allowed".
// Redis's own errors come first, then those of the scripts.
absl::StatusCode CodeFor(std::string_view error) {
  static constexpr std::pair<std::string_view, absl::StatusCode> kCodes[] = {
      {"LOADING", absl::StatusCode::kUnavailable},
      {"BUSY", absl::StatusCode::kUnavailable},
      {"TRYAGAIN", absl::StatusCode::kUnavailable},
      {"MASTERDOWN", absl::StatusCode::kUnavailable},
      {"READONLY", absl::StatusCode::kUnavailable},
      {"MISCONF", absl::StatusCode::kUnavailable},
      {"NOREPLICAS", absl::StatusCode::kUnavailable},
      {"OOM", absl::StatusCode::kResourceExhausted},
      {"NOAUTH", absl::StatusCode::kPermissionDenied},
      {"WRONGPASS", absl::StatusCode::kPermissionDenied},
      {"NOPERM", absl::StatusCode::kPermissionDenied},
      {"NOSCRIPT", absl::StatusCode::kNotFound},
      {"NOLEASE", kNoLease},
      {"FENCED", absl::StatusCode::kAborted},
      {"EXISTS", absl::StatusCode::kAlreadyExists},
      {"CONFLICT", absl::StatusCode::kFailedPrecondition},
  };
  for (const auto& [word, code] : kCodes) {
    const bool inside = error.starts_with("ERR Error running script") &&
                        error.find(absl::StrCat(": -", AbslView(word))) != std::string_view::npos;
    if (inside || error.starts_with(word)) return code;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

RedisConnection::RedisConnection(RedisAddress address, absl::Duration timeout)
    : address_(std::move(address)), timeout_(timeout), reader_(nullptr, redisReaderFree) {}

RedisConnection::~RedisConnection() = default;

absl::Status RedisConnection::Broken(const absl::Status& why) {
  stream_.reset();
  return absl::UnavailableError(absl::StrCat(address_.Text(), ": ", why.message()));
}

absl::Status RedisConnection::Connect() {
  auto opened = server::ClientStream::Open(
      {.host = address_.host, .port = address_.port, .tls = address_.tls}, timeout_);
  if (!opened.ok()) return Broken(opened.status());
  stream_ = *std::move(opened);
  reader_.reset(redisReaderCreate());
  if (reader_ == nullptr) return Broken(absl::ResourceExhaustedError("no memory for a reader"));
  buffer_.resize(kReadBytes);
  std::vector<Command> hello;
  if (!address_.password.empty()) {
    hello.push_back(address_.user.empty() ? Command{"AUTH", address_.password}
                                          : Command{"AUTH", address_.user, address_.password});
  }
  hello.push_back({"SELECT", absl::StrCat(address_.database)});
  for (const absl::StatusOr<Reply>& reply : RunTogether(hello)) {
    if (reply.ok()) continue;
    stream_.reset();
    return reply.status();
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Send(const std::vector<Command>& commands) {
  std::string bytes;
  for (const Command& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string& word : command) {
      words.push_back(word.data());
      sizes.push_back(word.size());
    }
    char* formatted = nullptr;
    const int size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()),
                                            words.data(), sizes.data());
    if (size < 0) return Broken(absl::ResourceExhaustedError("no memory"));
    bytes.append(formatted, static_cast<size_t>(size));
    redisFreeCommand(formatted);
  }
  const absl::Status written = stream_->Write({bytes}, timeout_);
  return written.ok() ? written : Broken(written);
}

absl::StatusOr<Reply> RedisConnection::ReadReply(absl::Status& broken) {
  void* raw = nullptr;
  for (;;) {
    if (redisReaderGetReply(reader_.get(), &raw) != REDIS_OK) {
      return broken = Broken(absl::InternalError(reader_->errstr));
    }
    if (raw != nullptr) break;
    const absl::StatusOr<size_t> n = stream_->ReadSome(buffer_.data(), buffer_.size(), timeout_);
    if (!n.ok()) return broken = Broken(n.status());
    if (*n == 0) return broken = Broken(absl::UnavailableError("the server closed the connection"));
    if (redisReaderFeed(reader_.get(), buffer_.data(), *n) != REDIS_OK) {
      return broken = Broken(absl::InternalError(reader_->errstr));
    }
  }
  const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(raw),
                                                           freeReplyObject);
  if (reply->type != REDIS_REPLY_ERROR) return ReadTree(*reply);
  const std::string_view error(reply->str, reply->len);
  return absl::Status(CodeFor(error), absl::StrCat(address_.Text(), ": ", std::string(error)));
}

Replies RedisConnection::RunTogether(const std::vector<Command>& commands) {
  unanswered_ = false;
  absl::Status broken = stream_ == nullptr ? Connect() : absl::OkStatus();
  const bool sending = broken.ok();
  if (sending) broken = Send(commands);
  Replies replies;
  for (size_t i = 0; i < commands.size() && broken.ok(); ++i) {
    replies.push_back(ReadReply(broken));
  }
  if (!broken.ok()) replies.assign(commands.size(), broken);
  unanswered_ = sending && !broken.ok();
  return replies;
}

}  // namespace ovq::redis

#include "server/redis/redis_connection.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::redis {
namespace {

Reply ReadTree(const redisReply& from) {
  Reply reply;
  reply.null = from.type == REDIS_REPLY_NIL;
  reply.number = from.integer;
  if (from.str != nullptr) reply.text.assign(from.str, from.len);
  for (size_t i = 0; i < from.elements; ++i) reply.items.push_back(ReadTree(*from.element[i]));
  return reply;
}

}  // namespace

RedisConnection::RedisConnection(RedisAddress address, absl::Duration timeout)
    : address_(std::move(address)), timeout_(timeout), context_(nullptr, redisFree) {}

RedisConnection::~RedisConnection() = default;

absl::Status RedisConnection::Broken() {
  const std::string why = context_ == nullptr ? "no memory" : context_->errstr;
  context_.reset();
  return absl::UnavailableError(
      absl::StrCat("redis://", address_.host, ":", address_.port, ": ", why));
}

absl::Status RedisConnection::Connect() {
  const timeval timeout = absl::ToTimeval(timeout_);
  context_.reset(redisConnectWithTimeout(address_.host.c_str(), address_.port, timeout));
  if (context_ == nullptr || context_->err != 0 ||
      redisSetTimeout(context_.get(), timeout) != REDIS_OK) {
    return Broken();
  }
  std::vector<Command> hello;
  if (!address_.password.empty()) hello.push_back({"AUTH", address_.password});
  hello.push_back({"SELECT", absl::StrCat(address_.database)});
  for (Command& command : hello) {
    absl::StatusOr<Reply> reply = Run(std::move(command));
    if (reply.ok()) continue;
    context_.reset();
    return reply.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::StatusOr<Reply>> RedisConnection::ReadReply() {
  void* raw = nullptr;
  if (redisGetReply(context_.get(), &raw) != REDIS_OK) return Broken();
  const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(raw),
                                                           freeReplyObject);
  if (reply->type != REDIS_REPLY_ERROR) return absl::StatusOr<Reply>(ReadTree(*reply));
  const std::string error(reply->str, reply->len);
  const absl::StatusCode code = error.starts_with("FENCED") ? absl::StatusCode::kAborted
                                                            : absl::StatusCode::kFailedPrecondition;
  return absl::StatusOr<Reply>(absl::Status(code, absl::StrCat("redis: ", error)));
}

absl::StatusOr<std::vector<absl::StatusOr<Reply>>> RedisConnection::RunTogether(
    const std::vector<Command>& commands) {
  if (context_ == nullptr) RETURN_IF_ERROR(Connect());
  for (const Command& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string& word : command) {
      words.push_back(word.data());
      sizes.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(),
                               sizes.data()) != REDIS_OK) {
      return Broken();
    }
  }
  std::vector<absl::StatusOr<Reply>> replies;
  for (size_t i = 0; i < commands.size(); ++i) {
    ASSIGN_OR_RETURN(absl::StatusOr<Reply> reply, ReadReply());
    replies.push_back(std::move(reply));
  }
  return replies;
}

absl::StatusOr<Reply> RedisConnection::Run(Command command) {
  ASSIGN_OR_RETURN(std::vector<absl::StatusOr<Reply>> replies, RunTogether({std::move(command)}));
  return std::move(replies[0]);
}

}  // namespace ovq::redis

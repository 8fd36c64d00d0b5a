// A redis-server of a test's own, and a proxy in front of it that loses what the test wants lost.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/redis/redis_connection.h"

namespace ovq::store::test {

inline constexpr char kRedisServer[] = "/usr/bin/redis-server";

class RedisProcess {
 public:
  // Starts one that keeps every write (appendonly, fsync always) in a folder of its own.
  explicit RedisProcess(std::vector<std::string> flags = {});
  ~RedisProcess();

  redis::RedisAddress address() const { return {.host = "127.0.0.1", .port = port_}; }
  // Runs a command, which must succeed.
  redis::Reply Run(redis::Command command);
  void Signal(int signal);
  void Kill();   // as a crash does
  void Start();  // again, with what it has kept

 private:
  const int port_;
  const std::string folder_;
  const std::vector<std::string> flags_;
  pid_t process_ = 0;
  std::unique_ptr<redis::RedisConnection> connection_;
};

// Passes connections on to a Redis server.
class RedisProxy {
 public:
  explicit RedisProxy(int to_port);
  ~RedisProxy();

  redis::RedisAddress address() const { return {.host = "127.0.0.1", .port = port_}; }
  // None of the next so many answers to commands that contain `word` arrives: the connection ends
  // once Redis has given it. Those of the last call must have been lost by then.
  void LoseAnswers(const std::string& word, int count);
  void LoseNoMore() { to_lose_ = 0; }
  void Freeze(bool frozen) { frozen_ = frozen; }  // nothing comes through
  // The answer to the next command that contains `word` waits, once Redis has given it, until
  // LetGo. Other connections go on.
  void HoldAnswer(const std::string& word);
  bool holds() const { return holds_; }
  void LetGo() { holds_ = false; }

 private:
  void Serve();
  void Pass(int client);

  const int to_port_;
  const int port_;
  int listener_ = -1;
  std::atomic<bool> ending_ = false, frozen_ = false, holds_ = false;
  std::atomic<int> to_lose_ = 0, to_hold_ = 0;
  std::string word_;
  std::thread thread_;
  std::vector<std::thread> connections_;
};

}  // namespace ovq::store::test

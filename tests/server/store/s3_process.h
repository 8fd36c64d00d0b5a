// An object store of a test's own: tests/process/s3_server.py as a process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "server/s3/s3_client.h"

namespace ovq::store::test {

inline constexpr char kPython[] = "/usr/bin/python3";

class S3Process {
 public:
  explicit S3Process(std::vector<std::string> flags = {});
  ~S3Process();

  // The address, with this or another port of the loopback.
  s3::S3Address address(int port = 0) const;
  static s3::S3Credentials credentials();
  // A client of the test's own.
  s3::S3Client& client() { return *client_; }
  std::vector<std::string> Keys(const std::string& prefix);
  // Changes how it behaves, as the script says: "NAME=VALUE&...".
  void Control(const std::string& commands);
  int port() const { return port_; }
  void Kill();   // as a crash does
  void Start();  // again, with what it has kept

 private:
  const int port_;
  const std::string folder_;
  const std::vector<std::string> flags_;
  pid_t process_ = 0;
  std::unique_ptr<s3::S3Client> client_;
};

}  // namespace ovq::store::test

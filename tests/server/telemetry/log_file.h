// An unnamed file that a log writes to.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/check.h"

namespace ovq::server::test {

class LogFile {
 public:
  LogFile() { Check(file_ != nullptr, "a temporary file can be made"); }
  ~LogFile() { std::fclose(file_); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  int fd() const { return fileno(file_); }

  // Reads without moving the writer's offset.
  std::string Text() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n;
         (n = pread(fd(), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  std::FILE* const file_ = std::tmpfile();
};

}  // namespace ovq::server::test

// The console, a program of this folder that runs in a browser: its files, as they lie here, in the
// server's program (embed.cmake). What it does is in docs/console.md.
#pragma once

#include <span>
#include <string_view>

namespace ovq::server {

struct ConsoleFile {
  std::string_view name;        // "style.css"
  std::string_view media_type;  // "text/css; charset=utf-8"
  std::string_view etag;        // of RFC 9110, with its quotes: follows from the bytes
  std::string_view bytes;
};

// By name. Any thread.
std::span<const ConsoleFile> ConsoleFiles();

}  // namespace ovq::server

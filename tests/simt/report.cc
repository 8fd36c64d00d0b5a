#include "tests/simt/report.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/simt/simt.h"

namespace ovq::simt {
namespace {

std::atomic<int> collectors = 0;
std::mutex errors_mutex;
std::vector<std::string> errors;

// The first two lines that addr2line prints: the function and its place.
std::string AskAddr2Line(const std::string& file, size_t offset) {
  char command[4096];
  std::snprintf(command, sizeof(command), "addr2line -Cfse '%s' 0x%zx 2>/dev/null", file.c_str(),
                offset);
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::string text;
  char line[1024];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) text += line;
  pclose(pipe);
  const size_t end = text.find('\n');
  if (end == std::string::npos || text.starts_with("??")) return "";
  return text.substr(0, end) + " at " + text.substr(end + 1, text.find('\n', end + 1) - end - 1);
}

}  // namespace

CollectErrors::CollectErrors() { ++collectors; }
CollectErrors::~CollectErrors() { --collectors; }

std::vector<std::string> DrainErrors() {
  const std::lock_guard lock(errors_mutex);
  return std::exchange(errors, {});
}

void Report(const std::string& text) {
  if (collectors == 0) {
    std::fprintf(stderr, "SIMT error: %s\n", text.c_str());
    std::abort();
  }
  const std::lock_guard lock(errors_mutex);
  errors.push_back(text);
}

std::string Symbolize(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return "unknown code";
  const size_t offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string name = AskAddr2Line(info.dli_fname, offset);
  if (!name.empty()) return name;
  char text[64];
  std::snprintf(text, sizeof(text), "+0x%zx", offset);
  return std::string(info.dli_fname) + text;
}

}  // namespace ovq::simt
